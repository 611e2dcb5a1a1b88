"""`export`: a policy, picked from a study or given, as JSON and as a file of a framework."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    PRESET_PREFIX,
    add_out,
    add_storage,
    add_trust,
    check_policy,
    policy_for,
    refuse,
    source,
)
from policysearch.commands.trust import trust_text
from policysearch.values import InputError

if TYPE_CHECKING:
    from policysearch.policy.policy import Policy
    from policysearch.study.journal.trials import Trial
    from policysearch.study.results.results import Results
    from policysearch.study.specification import StudySpec


def _arguments(export: argparse.ArgumentParser) -> None:
    keys = "a study file, of which a policy is picked; with --study a policy file, or preset:NAME"
    export.add_argument("source", type=source, metavar="SOURCE", help=keys)
    study = "the study whose net a policy given by name is for"
    export.add_argument("--study", type=source, metavar="STUDY.toml", help=study)
    add_trust(export)
    add_storage(export)
    rules = export.add_mutually_exclusive_group()
    picks = "what the verdict names (the default), or the member nearest to the ideal (knee)"
    rules.add_argument("--pick", choices=("verdict", "knee"), help=picks)
    rules.add_argument("--trial", type=int, metavar="N", help="the policy of this trial")
    rules.add_argument(
        "--fastest", action="store_true", help="the fastest (the default with --max-gap)"
    )
    rules.add_argument("--smallest", action="store_true", help="the one of least modeled memory")
    rules.add_argument("--fits", metavar="DEVICE", help="the fastest that fits there")
    export.add_argument("--batch", type=int, metavar="B", help="with --fits (the study's)")
    export.add_argument(
        "--max-gap",
        type=float,
        metavar="X",
        help="largest loss gap in nats, that of the confirmed training where there is one",
    )
    export.add_argument("--target", help="what to write code for (the study's, or torch)")
    stages = "stages of a pipeline, whose names count from the first block of a stage (1)"
    export.add_argument("--pipeline", type=int, default=1, metavar="P", help=stages)
    export.add_argument(
        "--strict", action="store_true", help="refuse what the target runs otherwise"
    )
    add_out(export)


def _export(options: argparse.Namespace) -> None:
    from policysearch.cost.device_file import device_at
    from policysearch.export.targets import target_named

    if options.target is not None:
        target_named(options.target)
    if options.fits is not None:
        device_at(options.fits)
    if options.study is not None:
        check_policy(str(options.source))
        _export_given(options)
        return
    if str(options.source).startswith(PRESET_PREFIX) or options.source.suffix == ".json":
        given = f"{options.source}: a policy without --study"
        raise InputError(f"{given}; expected the study of its net")
    _export_picked(options)


def _export_given(options: argparse.Namespace) -> None:
    """Export a policy file or a preset for the net of a study; nothing is trained."""
    from policysearch.api import default_storage
    from policysearch.report.asked_and_run import asked_and_run

    picks = ("pick", "trial", "fits", "batch", "max_gap")
    refuse(options, picks, "beside a policy; expected a study alone to pick from")
    for name in ("fastest", "smallest"):
        if getattr(options, name):
            given = f"--{name}: given beside a policy"
            raise InputError(f"{given}; expected a study alone to pick from")
    spec = policysearch.load_study(options.study)
    options.target = options.target or spec.study.export_target
    policy = policy_for(str(options.source), replace(spec, study=replace(spec.study, target=None)))
    _refuse_unlike(options, policysearch.as_exported(policy, spec, options.target)[1])
    paths = policysearch.export_policy(
        policy, spec, options.out, options.target, pipeline=options.pipeline
    )
    _trust(paths)
    print("\n".join(f"wrote {path}" for path in paths))
    print()
    print(asked_and_run(policy, spec, options.target, options.storage or default_storage(spec)))
    if line := _nothing_gained(policy, spec, options.target):
        print(f"\n{line}")


def _nothing_gained(policy: Policy, spec: StudySpec, target: str) -> str:
    from policysearch.report.one_trial import nothing_gained
    from policysearch.study.specification import objective_of

    if spec.study.baseline is None:
        return ""
    running, _ = policysearch.as_exported(policy, spec, target)
    base = policy_for(f"{PRESET_PREFIX}{spec.study.baseline}", spec)
    own, today = map(objective_of(spec).price, (running, base))
    axes = (own.speedup, own.memory_ratio), (today.speedup, today.memory_ratio)
    return nothing_gained(*axes, spec.study.baseline)


def _trust(paths: Sequence[Path]) -> None:
    """Remember the written Python files, which `verify` may run."""
    for path in paths:
        if path.suffix == ".py":
            trust_text(path.read_bytes())


def _refuse_unlike(options: argparse.Namespace, different: tuple[str, ...]) -> None:
    if different and options.strict:
        raise InputError(
            f"--strict: {different[0]} ({len(different)} such); expected a policy that "
            f'{options.target} runs as it is, as with study.target = "{options.target}"'
        )


def _export_picked(options: argparse.Namespace) -> None:
    from policysearch.api import default_storage
    from policysearch.report.asked_and_run import asked_and_run
    from policysearch.report.one_trial import beside_baseline, exported_notes

    spec = policysearch.load_study(options.source)
    options.target = options.target or spec.study.export_target
    results = policysearch.load_results(spec, options.storage)
    trial = _picked_trial(results, options)
    notes, asked = exported_notes(results, trial), trial.policy
    running, different = policysearch.as_exported(trial.policy, spec, options.target)
    _refuse_unlike(options, different)
    paths = policysearch.export_policy(
        trial.policy, spec, options.out, options.target, notes, options.pipeline
    )
    _trust(paths)
    print("\n".join((*notes, *(f"wrote {path}" for path in paths))))
    if different:
        results, number, added = policysearch.try_policy(running, spec, options.storage)
        print(f"\nas {options.target} runs it:")
        trial = results.trial(number)
        if added:
            print(f"trial {number} is new in the study: it was trained now to know its gap")
        print("\n".join(exported_notes(results, trial)))
        print()
        print(asked_and_run(asked, spec, options.target, options.storage or default_storage(spec)))
    if beside := beside_baseline(results, trial):
        print(beside)


def _picked_trial(results: Results, options: argparse.Namespace) -> Trial:
    from policysearch.study.results.picks import fitting, smallest
    from policysearch.study.specification import objective_of

    if options.fits is None:
        refuse(options, ("batch",), "without --fits; expected both")
    if options.trial is not None:
        if options.max_gap is not None:
            raise InputError("--max-gap: given with --trial; expected one of them")
        return results.trial(options.trial)
    if options.fits is not None:
        there = objective_of(results.spec, options.fits, options.batch)
        return fitting(results, there, options.max_gap)
    if options.smallest:
        return smallest(results, options.max_gap)
    if options.fastest or options.max_gap is not None:
        if options.pick is not None:
            raise InputError(f"--max-gap: given with --pick {options.pick}; expected one of them")
        return policysearch.pick(results, "fastest", max_gap=options.max_gap)
    return policysearch.pick(results, options.pick or "verdict")


COMMANDS = (
    Command(
        310,
        "export",
        "write a policy for a trainer",
        _export,
        _arguments,
        example="export studies/mlp-digits.toml --max-gap 0.01 --fastest",
    ),
)
