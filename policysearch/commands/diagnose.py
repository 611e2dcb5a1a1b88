"""`diagnose`: why a policy fails, where, and the smallest change that repairs it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_policy,
    add_trust,
    at_least_one,
    refuse,
    say,
    source,
    study_and_policy,
)
from policysearch.files import write_files
from policysearch.values import InputError

if TYPE_CHECKING:
    from policysearch.policy.policy import Policy
    from policysearch.study.specification import StudySpec

WEIGHED, MOMENTS = 40, 4
"""So many changes are weighed, about, each by so many steps."""


def _arguments(command: argparse.ArgumentParser) -> None:
    add_policy(command, nargs="?")
    command.add_argument("--study", type=source, metavar="STUDY.toml", help="where it is trained")
    add_trust(command)
    command.add_argument(
        "--log", type=source, metavar="FILE", help="what was recorded of a training, instead"
    )
    command.add_argument(
        "--format", metavar="NAME", help="what the log's training would lose in it (float16)"
    )
    command.add_argument(
        "--budget", type=int, default=6, metavar="N", help="changes that are trained at most (6)"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="write the repaired policy to this file"
    )


def _diagnose(options: argparse.Namespace) -> None:
    from policysearch.api import diagnose, preflight
    from policysearch.diagnose.diagnosis import runs
    from policysearch.diagnose.recordings import log_page
    from policysearch.report.diagnosis_page import diagnosis_page
    from policysearch.report.progress import Bar

    at_least_one(options, "budget")
    if options.log is not None:
        refuse(options, ("policy", "study", "out"), "beside --log; expected the log alone")
        print(log_page(options.log, options.format or "float16"))
        return
    if options.policy is None or options.study is None:
        given = options.policy or options.study or "no policy and study"
        raise InputError(f"diagnose: {given}; expected POLICY --study STUDY, or --log FILE")
    refuse(options, ("format",), "without --log; expected it beside a log")
    study, policy = study_and_policy(options)
    for line in preflight(policy, study):
        say(f"before training: {line}")
    _, most = least_most = runs(len(study.study.seeds), options.budget)
    say(_estimate(study, policy, *least_most))
    with Bar(most, "runs") as bar:
        found = diagnose(policy, study, budget=options.budget, progress=bar.tell)
    print(diagnosis_page(found, policy))
    if found.repair is None:
        return
    if options.out is not None:
        text = replace(found.repair.policy, name=f"{policy.name}, repaired").to_json().encode()
        write_files({options.out.name: text}, options.out.parent)
        print(f"\nnext: policysearch try {options.out} --study {options.study}")
    else:
        print("\nnext: the same with --out FILE writes the repaired policy")


def _estimate(study: StudySpec, policy: Policy, least: int, most: int) -> str:
    """Return how long a diagnosis takes on this machine, in words, from a few of its steps."""
    from policysearch.study.estimate import said, timed_steps
    from policysearch.study.specification import objective_of

    objective = objective_of(study)
    objective.price(policy)  # says what is wrong with a policy before anything is trained
    timed, steps = timed_steps(objective, policy), study.task.steps
    run, weighed = timed.seconds(steps), WEIGHED * timed.seconds(MOMENTS)
    return (
        f"{least} runs of {steps} steps if nothing fails: about {said(least * run)}; "
        f"at most {most} if it does: about {said(most * run + weighed)}"
    )


COMMANDS = (
    Command(
        220,
        "diagnose",
        "why a policy fails, where, and the smallest change that repairs it",
        _diagnose,
        _arguments,
        example="diagnose preset:apex.O3 --study studies/mlp-digits.toml",
    ),
)
