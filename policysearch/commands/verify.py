"""`verify`: whether an exported policy trains as the emulator does."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_policy,
    add_study_option,
    add_wide,
    say,
    study_and_policy,
)
from policysearch.commands.trust import check_file
from policysearch.values import InputError, one_of

if TYPE_CHECKING:
    from policysearch.study.specification import StudySpec
    from policysearch.train.tasks import Task
    from policysearch.verify.jittered_runs import Tell
    from policysearch.verify.verdict import Verdict

FAILED, UNDECIDED = 1, 3
"""Exit codes; a mistake of the user's has 2."""
MANY, FEW = 50, 10
"""Steps in torch, and in the interpreter of another framework."""


def _arguments(verify: argparse.ArgumentParser) -> None:
    add_policy(verify, "an exported file (.py), judged as it is, ")
    add_wide(verify)
    add_study_option(verify)
    verify.add_argument("--target", default="torch", help="where it is trained (torch)")
    interpreter = "interpreter of an environment that has the target, where that is not torch"
    verify.add_argument("--python", metavar="ENV", help=interpreter)
    verify.add_argument("--place", default="cpu", help="device it is trained on (cpu), say cuda")
    steps = "steps to train (50; with --python 10)"
    verify.add_argument("--steps", type=int, metavar="N", help=steps)
    verify.add_argument("--batch", type=int, metavar="B", help="examples of a step (the study's)")


def _verify(options: argparse.Namespace) -> None:
    from policysearch.report.progress import Bar
    from policysearch.verify.jittered_runs import STAGES
    from policysearch.verify.page import verdict_page

    judge = _verify_file if options.policy.endswith(".py") else _verify_policy
    with Bar(STAGES, "trainings") as bar:
        verdict = judge(options, bar.tell)
    print(verdict_page(verdict))
    if verdict.faults or verdict.undecided:
        raise SystemExit(FAILED if verdict.faults else UNDECIDED)


def _is_elsewhere(options: argparse.Namespace) -> bool:
    """Whether the target has an interpreter of its own; InputError where one is not said."""
    from policysearch.verify.elsewhere import SCRIPTS
    from policysearch.verify.verdict import RUN

    one_of("verify target", options.target, (*RUN, *SCRIPTS))
    there = options.target in SCRIPTS
    if there != (options.python is not None):
        given = f"--target {options.target} {'with' if options.python else 'without'} --python"
        raise InputError(f"{given}; expected it for {', '.join(SCRIPTS)}, and for no other")
    if there and options.place != "cpu":
        raise InputError(f"--place {options.place}: with --python; expected cpu")
    return there


def _verify_policy(options: argparse.Namespace, progress: Tell) -> Verdict:
    from policysearch.verify.elsewhere import verify_elsewhere

    there = _is_elsewhere(options)
    spec, policy = study_and_policy(options)
    steps = _steps(options, there)
    if there:
        return verify_elsewhere(
            policy,
            _task(spec, options),
            options.target,
            options.python,
            steps=steps,
            progress=progress,
        )
    return policysearch.verify_policy(
        policy,
        spec,
        target=options.target,
        steps=steps,
        place=options.place,
        batch_size=options.batch,
        progress=progress,
    )


def _steps(options: argparse.Namespace, there: bool) -> int:
    usual = FEW if there else MANY
    return usual if options.steps is None else int(options.steps)


def _task(spec: StudySpec, options: argparse.Namespace) -> Task:
    return spec.task if options.batch is None else replace(spec.task, batch_size=options.batch)


def _verify_file(options: argparse.Namespace, progress: Tell) -> Verdict:
    """Judge a file by the policy that it says it is of: one beside it, a preset, or its tables."""
    from policysearch.export.targets import target_named
    from policysearch.files import read_text
    from policysearch.policy.policy_file import read_policy
    from policysearch.policy.presets import PRESETS, preset
    from policysearch.verify.elsewhere import verify_elsewhere
    from policysearch.verify.shipped import policy_in_file, verify_file

    if options.float32:
        raise InputError(f"--float32: of {options.policy}; expected it of a policy, not of a file")
    there, target, file = _is_elsewhere(options), options.target, Path(options.policy)
    text = read_text(file, f"an exported {target} file")
    spec = policysearch.load_study(options.study)
    check_file(file, options.trust)
    model = spec.task.build_model(spec.task.load_dataset())
    beside = [read_policy(path) for path in sorted(file.parent.glob("*-policy.json"))]
    known = [*beside, *(preset(name, model.layer_names) for name in PRESETS)]
    policy, found = policy_in_file(text, model, known, str(file), target)
    if not found:
        say(f"{file}: no policy with its digest lies beside it; judged by its own tables")
    if not target_named(target).losses(policy, model) and found:
        say(f"{file}: of the policy {policy.name}, which {target} runs as it is")
    task, steps = _task(spec, options), _steps(options, there)
    if there:
        return verify_elsewhere(
            policy, task, target, options.python, steps=steps, text=text, progress=progress
        )
    return verify_file(text, policy, task, steps=steps, place=options.place, progress=progress)


COMMANDS = (
    Command(
        360,
        "verify",
        "train a policy as exported, beside the emulator",
        _verify,
        _arguments,
        example="verify preset:torch.autocast.bfloat16 --study studies/mlp-digits.toml",
    ),
)
