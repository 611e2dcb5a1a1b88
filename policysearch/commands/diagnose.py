"""`diagnose`: why a policy fails, where, and the smallest change that repairs it."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_policy,
    add_study_option,
    at_least_one,
    say,
    study_and_policy,
)
from policysearch.files import write_files


def _arguments(command: argparse.ArgumentParser) -> None:
    add_policy(command)
    add_study_option(command)
    command.add_argument(
        "--budget", type=int, default=6, metavar="N", help="changes that are trained at most (6)"
    )
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="write the repaired policy to this file"
    )


def _diagnose(options: argparse.Namespace) -> None:
    from policysearch.api import diagnose
    from policysearch.report.diagnosis_page import diagnosis_page

    at_least_one(options, "budget")
    study, policy = study_and_policy(options)
    found = diagnose(policy, study, budget=options.budget, progress=say)
    print(diagnosis_page(found, policy))
    if found.repair is None:
        return
    if options.out is not None:
        text = found.repair.policy.to_json().encode()
        write_files({options.out.name: text}, options.out.parent)
        print(f"\nnext: policysearch try {options.out} --study {options.study}")
    else:
        print("\nnext: the same with --out FILE writes the repaired policy")


COMMANDS = (
    Command(
        65,
        "diagnose",
        "why a policy fails, where, and the smallest change that repairs it",
        _diagnose,
        _arguments,
    ),
)
