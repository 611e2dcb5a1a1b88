"""`verify`: whether an exported policy trains as the emulator does."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import add_policy, add_study_option, say, study_and_policy
from policysearch.commands.trust import check_file

if TYPE_CHECKING:
    from policysearch.verify.verdict import Verdict

FAILED, UNDECIDED = 1, 3
"""Exit codes; a mistake of the user's has 2."""


def _arguments(verify: argparse.ArgumentParser) -> None:
    add_policy(verify, "an exported file (.py), judged as it is, ")
    add_study_option(verify)
    verify.add_argument("--target", default="torch", help="where it is trained (torch)")
    verify.add_argument("--place", default="cpu", help="device it is trained on (cpu), say cuda")
    verify.add_argument("--steps", type=int, default=50, metavar="N", help="steps to train (50)")
    verify.add_argument("--batch", type=int, metavar="B", help="examples of a step (the study's)")


def _verify(options: argparse.Namespace) -> None:
    from policysearch.verify.page import verdict_page

    if options.policy.endswith(".py"):
        verdict = _verify_file(options)
        print(verdict_page(verdict))
        _exit(verdict)
        return
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
    _exit(verdict)


def _exit(verdict: Verdict) -> None:
    if verdict.faults or verdict.undecided:
        raise SystemExit(FAILED if verdict.faults else UNDECIDED)


def _verify_file(options: argparse.Namespace) -> Verdict:
    """Judge a file by the policy that it says it is of: one beside it, a preset, or its tables."""
    from policysearch.export.targets import target_named
    from policysearch.files import read_text
    from policysearch.policy.policy_file import read_policy
    from policysearch.policy.presets import PRESETS, preset
    from policysearch.verify.shipped import policy_in_file, verify_file

    file = Path(options.policy)
    text, spec = read_text(file, "an exported torch file"), policysearch.load_study(options.study)
    check_file(file, options.trust)
    model = spec.task.build_model(spec.task.load_dataset())
    beside = [read_policy(path) for path in sorted(file.parent.glob("*-policy.json"))]
    known = [*beside, *(preset(name, model.layer_names) for name in PRESETS)]
    policy, found = policy_in_file(text, model, known, str(file))
    if not found:
        say(f"{file}: no policy with its digest lies beside it; judged by its own tables")
    if not target_named("torch").losses(policy, model) and found:
        say(f"{file}: of the policy {policy.name}, which torch runs as it is")
    task = spec.task if options.batch is None else replace(spec.task, batch_size=options.batch)
    return verify_file(text, policy, task, steps=options.steps, place=options.place)


COMMANDS = (
    Command(
        360,
        "verify",
        "train a policy as exported, beside the emulator",
        _verify,
        _arguments,
        example="verify preset:torch.autocast --study studies/mlp-digits.toml",
    ),
)
