"""`verify`: whether an exported policy trains as the emulator does."""

from __future__ import annotations

import argparse

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import add_policy, add_study_option, study_and_policy

FAILED, UNDECIDED = 1, 3
"""Exit codes; a mistake of the user's has 2."""


def _arguments(verify: argparse.ArgumentParser) -> None:
    add_policy(verify)
    add_study_option(verify)
    verify.add_argument("--target", default="torch", help="where it is trained (torch)")
    verify.add_argument("--place", default="cpu", help="device it is trained on (cpu), say cuda")
    verify.add_argument("--steps", type=int, default=50, metavar="N", help="steps to train (50)")
    verify.add_argument("--batch", type=int, metavar="B", help="examples of a step (the study's)")


def _verify(options: argparse.Namespace) -> None:
    from policysearch.verify.page import verdict_page

    spec, policy = study_and_policy(options)
    verdict = policysearch.verify_policy(
        policy,
        spec,
        target=options.target,
        steps=options.steps,
        place=options.place,
        batch_size=options.batch,
    )
    print(verdict_page(verdict))
    if verdict.faults or verdict.undecided:
        raise SystemExit(FAILED if verdict.faults else UNDECIDED)


COMMANDS = (
    Command(100, "verify", "train a policy as exported, beside the emulator", _verify, _arguments),
)
