"""`verify`: whether an exported policy trains as the emulator does."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch import api
from policysearch.commands.shared import Commands, policy_in
from policysearch.verify.page import verdict_page

FAILED, UNDECIDED = 1, 3
"""Exit codes; a mistake of the user's has 2."""


def add_verify(commands: Commands) -> None:
    """Add `verify`."""
    verify = commands.add_parser("verify", help="train a policy as exported, beside the emulator")
    verify.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    verify.add_argument("--study", type=Path, metavar="STUDY.toml", required=True)
    verify.add_argument("--target", default="torch", help="where it is trained (torch)")
    verify.add_argument("--place", default="cpu", help="device it is trained on (cpu), say cuda")
    verify.add_argument("--steps", type=int, default=50, metavar="N", help="steps to train (50)")
    verify.add_argument("--batch", type=int, metavar="B", help="examples of a step (the study's)")
    verify.set_defaults(run=_verify)


def _verify(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    policy = policy_in(spec, options.policy)
    given = {"target": options.target, "steps": options.steps, "place": options.place}
    verdict = api.verify_policy(policy, spec, batch_size=options.batch, **given)
    print(verdict_page(verdict))
    if verdict.faults or verdict.undecided:
        raise SystemExit(FAILED if verdict.faults else UNDECIDED)
