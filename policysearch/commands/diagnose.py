"""`diagnose`: why a policy fails, where, and the smallest change that repairs it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
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
    from policysearch.study.specification import StudySpec


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
    from policysearch.diagnose.recordings import log_page
    from policysearch.report.diagnosis_page import diagnosis_page

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
    found = diagnose(policy, study, budget=options.budget, progress=_told(options.budget, study))
    print(diagnosis_page(found, policy))
    if found.repair is None:
        return
    if options.out is not None:
        text = replace(found.repair.policy, name=f"{policy.name}, repaired").to_json().encode()
        write_files({options.out.name: text}, options.out.parent)
        print(f"\nnext: policysearch try {options.out} --study {options.study}")
    else:
        print("\nnext: the same with --out FILE writes the repaired policy")


def _told(budget: int, study: StudySpec) -> Callable[[str], None]:
    """Return what says which training begins, of about how many, and how long each takes so far."""
    from policysearch.diagnose.diagnosis import JITTERS, SMALL_JITTERS
    from policysearch.study.estimate import said

    most, begun = 2 + len((*JITTERS, *SMALL_JITTERS)) + budget, list[float]()
    say(f"up to {most} trainings of {study.task.steps} steps, and those that confirm a repair")

    def told(what: str) -> None:
        begun.append(time.monotonic())
        each = (begun[-1] - begun[0]) / max(1, len(begun) - 1)
        pace = f", {said(each)} each" if len(begun) > 1 else ""
        say(f"{len(begun)}/{most}{pace}: {what}")

    return told


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
