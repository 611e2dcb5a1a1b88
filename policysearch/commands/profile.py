"""`profile`: where the modeled time and memory of one policy's step go."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch import api
from policysearch.commands.shared import Commands, add_task, policy_of, task_of
from policysearch.commands.sources import WITHOUT_STUDY
from policysearch.files import write_whole
from policysearch.objective.objective import Objective
from policysearch.report.causes import Changes
from policysearch.report.largest import largest_lines
from policysearch.report.optimizer_lines import optimizer_lines
from policysearch.report.profile_page import profile_page
from policysearch.space.parallel import ParallelSection
from policysearch.space.target import as_run


def add_profile(commands: Commands) -> None:
    """Add `profile`."""
    profile = commands.add_parser("profile", help="where modeled time and memory of a policy go")
    profile.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    add_task(profile)
    profile.add_argument("--device", help=f"the study's, or {WITHOUT_STUDY.device}")
    profile.add_argument("--stack", help=f"the study's, or {WITHOUT_STUDY.stack}")
    profile.add_argument("--batch", type=int, metavar="B", help="the study's, or the task's")
    profile.add_argument(
        "--recompute", nargs="+", metavar="BLOCK", help="layers computed again in backward"
    )
    profile.add_argument(
        "--largest-batch", action="store_true", help="the largest batch that the device holds too"
    )
    profile.add_argument(
        "--optimizers", action="store_true", help="what the update takes with each optimizer too"
    )
    profile.add_argument("--out", type=Path, metavar="FILE.png", help="draw it too")
    profile.set_defaults(run=_profile)


def _profile(options: argparse.Namespace) -> None:
    task, study = task_of(options), api.load_study(options.study) if options.study else None
    given, parallel = (study.cost, study.parallel) if study else (WITHOUT_STUDY, ParallelSection())
    objective = Objective(
        task,
        options.device or given.device,
        options.stack or given.stack,
        given.batch_size if options.batch is None else options.batch,
        parallel=parallel.base,
        recompute=tuple(options.recompute or given.recompute),
    )
    policy = parallel.spread(policy_of(options, objective.model))
    target = study.study.target if study else None
    changes = Changes(objective, policy, lambda given: as_run(given, objective.model, target))
    print(profile_page(objective, changes))
    if options.largest_batch:
        print("\n" + "\n".join(largest_lines(objective, policy)))
    if options.optimizers:
        print("\n" + "\n".join(optimizer_lines(objective, changes.graph)))
    if options.out is not None:
        # Matplotlib takes a second to import, which only plotting should wait for.
        from policysearch.report.profile_plot import profile_plot

        where = f"{objective.device.name}, {objective.stack.name}"
        title = f"{policy.name}: one step of {task.model_name}, modeled on {where}"
        write_whole({options.out: profile_plot(changes, title)})
        print(f"\nwrote {options.out}")
