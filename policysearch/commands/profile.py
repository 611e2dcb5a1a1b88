"""`profile`: where the modeled time and memory of one policy's step go."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    DEVICE,
    STACK,
    add_policy,
    add_task,
    check_policy,
    cost_of,
    policy_of,
    task_of,
    viewed,
    with_clipping,
)
from policysearch.files import write_whole


def _arguments(profile: argparse.ArgumentParser) -> None:
    add_policy(profile)
    add_task(profile)
    profile.add_argument("--device", help=f"the study's, or {DEVICE}")
    profile.add_argument("--stack", help=f"the study's, or {STACK}")
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


def _profile(options: argparse.Namespace) -> None:
    from policysearch.objective.objective import Objective
    from policysearch.report.causes import Changes
    from policysearch.report.profile_page import largest_lines, optimizer_lines, profile_page
    from policysearch.space.parallel import ParallelSection
    from policysearch.space.target import as_run, baseline_as_run

    check_policy(options.policy)
    study = viewed(options) if options.study else None
    task = with_clipping(task_of(options), options.policy)
    cost, parallel = cost_of(study), study.parallel if study else ParallelSection()
    objective = Objective(
        task,
        options.device or cost.device,
        options.stack or cost.stack,
        cost.batch_size if options.batch is None else options.batch,
        parallel=parallel.base,
        recompute=tuple(options.recompute or cost.recompute),
        net=cost.net,
    )
    policy = parallel.spread(policy_of(options, objective.model))
    target = study.study.target if study else None
    baseline = baseline_as_run(study.study.baseline, objective.model, target) if study else None
    changes = Changes(objective, policy, lambda changed: as_run(changed, objective.model, target))
    print(profile_page(objective, changes, baseline))
    if options.largest_batch:
        print("\n" + "\n".join(largest_lines(objective, policy)))
    if options.optimizers:
        print("\n" + "\n".join(optimizer_lines(objective, changes)))
    if options.out is not None:
        from policysearch.report.profile_plot import profile_plot

        where = f"{objective.device.name}, {objective.stack.name}"
        title = f"{policy.name}: one step of {task.model_name}, modeled on {where}"
        write_whole({options.out: profile_plot(changes, title)})
        print(f"\nwrote {options.out}")


COMMANDS = (
    Command(
        240,
        "profile",
        "where modeled time and memory of a policy go",
        _profile,
        _arguments,
        example="profile preset:mindspore.O2 --model lenet5",
    ),
)
