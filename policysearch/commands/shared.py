"""What commands share: arguments, and the studies, tasks, models and policies that they name."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import policysearch
from policysearch.files import RESULTS_FOLDER
from policysearch.values import InputError, near_miss, one_of

if TYPE_CHECKING:
    from policysearch.nn.model import Model
    from policysearch.policy.policy import Policy
    from policysearch.study.cost_section import CostSection
    from policysearch.study.results.results import Results
    from policysearch.study.specification import StudySpec
    from policysearch.train.tasks import Task

PRESET_PREFIX = "preset:"

DEVICE, STACK = "H100-SXM5", "torch.compile"
"""What is modeled where no study says it."""


def source(text: str) -> Path:
    """Return the path of a file that a command reads, as a type of arguments."""
    return Path(text)


def add_trust(command: argparse.ArgumentParser) -> None:
    """Let the command be told to run a file that the study names."""
    help = "run the Python files that it names, now and as long as they stay as they are"
    command.add_argument("--trust", action="store_true", help=help)


def add_study(command: argparse.ArgumentParser) -> None:
    """Let the command take a study file, and the journal of its results."""
    keys = "a study file, whose keys `policysearch keys` lists"
    command.add_argument("study", type=source, metavar="STUDY.toml", help=keys)
    add_trust(command)
    add_storage(command)


def add_storage(command: argparse.ArgumentParser) -> None:
    """Let the command take the journal of a study's results."""
    command.add_argument(
        "--storage", type=Path, metavar="FILE", help="journal file (results/<name>.journal)"
    )


def add_study_option(command: argparse.ArgumentParser) -> None:
    """Let the command demand `--study`, where its first argument is a policy."""
    of = "the study file that it belongs to"
    command.add_argument("--study", type=source, metavar="STUDY.toml", required=True, help=of)
    add_trust(command)


def add_policy(command: argparse.ArgumentParser, trial: str = "", **options: Any) -> None:
    """Let the command take a policy, after `trial` where that is another way to name one."""
    help = f"{trial}a policy file, or preset:NAME"
    command.add_argument("policy", metavar="POLICY", help=help, **options)


def add_wide(command: argparse.ArgumentParser) -> None:
    """Let the command put layers of its policy back to float32."""
    help = "put this layer of the policy back to float32; for each layer again"
    command.add_argument("--float32", metavar="LAYER", action="append", default=[], help=help)


def add_processes(command: argparse.ArgumentParser, more: str = "") -> None:
    """Let the command take a number of processes."""
    help = f"training processes{more}"
    command.add_argument("--processes", type=int, metavar="N", help=help)


def add_task(command: argparse.ArgumentParser) -> None:
    """Let the command take a study, or one of the models, whose step it shows."""
    from policysearch.nn.models import MODELS

    where = command.add_mutually_exclusive_group()
    where.add_argument("--study", type=source, metavar="STUDY.toml", help="use the study's task")
    add_trust(command)
    where.add_argument("--model", default="lenet5", help=", ".join(MODELS))


def add_out(command: argparse.ArgumentParser) -> None:
    """Let the command take where to write."""
    command.add_argument(
        "--out", type=Path, default=RESULTS_FOLDER, metavar="DIR", help="where to write"
    )


def places(options: argparse.Namespace) -> str:
    """Return the study file and its journal as they are given to a command."""
    storage = f" --storage {options.storage}" if options.storage else ""
    return f"{options.study}{storage}"


def results_of(options: argparse.Namespace) -> Results:
    """Return what the study that the command was given has found so far; no user code is run."""
    return policysearch.load_results(viewed(options), options.storage)


def viewed(options: argparse.Namespace) -> StudySpec:
    """Return the study that a command shows: the net is the kept one where there is one."""
    from policysearch.study.kept import load_to_view

    return load_to_view(options.study, getattr(options, "storage", None))


def task_of(options: argparse.Namespace) -> Task:
    """Return the task of the study that was named, or a small one with the model."""
    if options.study:
        return viewed(options).task
    return task_for(options.model)


def with_clipping(task: Task, source: str) -> Task:
    """Return the recipe with the clipping of an older policy file in it, and say so.

    Raises InputError where the task clips otherwise.
    """
    from policysearch.policy.policy_file import read_clipped

    if source.startswith(PRESET_PREFIX) or not Path(source).exists():
        return task
    limit = read_clipped(Path(source))[1]
    if limit is None or limit == task.clip_norm:
        return task
    if task.clip_norm is not None or task.clip_value is not None:
        raise InputError(
            f"{source}: gradient_clip_norm: {limit:g}; expected null, for the task has "
            f"{'clip_value' if task.clip_norm is None else 'another clip_norm'}"
        )
    say(f"{source}: clipping is of the recipe now: clip_norm = {limit:g} is added to the task here")
    return replace(task, clip_norm=limit)


def task_for(model: str) -> Task:
    """Return a small task with the model called `model`, to show policies on."""
    from policysearch.nn.models import MODELS
    from policysearch.train.tasks import Task

    one_of("model", model, MODELS)
    if model == "mlp":
        return Task(model=model, data="digits", widths=(64, 64))
    if model == "gpt":
        return Task(model=model, activation="gelu", data="sums")
    return Task(model=model)


def model_of(options: argparse.Namespace) -> Model:
    """Return the model of that task."""
    task = task_of(options)
    return task.build_model(task.load_dataset())


def cost_of(study: StudySpec | None) -> CostSection:
    """Return on what the step of a study is priced, or a step that no study names."""
    from policysearch.study.cost_section import CostSection

    return study.cost if study else CostSection(DEVICE, STACK)


def policy_of(options: argparse.Namespace, model: Model) -> Policy:
    """Return the policy that the command was given; of a study, as that trains and prices it.

    What an older file says of clipping is in the task by now (see `with_clipping`).
    """
    if options.study:
        return policy_in(viewed(options), options.policy, clipped=True)
    return policy_from(options.policy, model, clipped=True)


def policy_in(
    study: StudySpec, source: str, clipped: bool = False, wide: Sequence[str] = ()
) -> Policy:
    """Return `policy_for` the study, and say where its target runs another than was given."""
    from policysearch.export.reading import grouped
    from policysearch.space.target import kept_wide

    if study.study.target is not None:
        model = study.task.build_model(study.task.load_dataset())
        policy = policy_from(source, model, clipped, wide)
        _, different = policysearch.as_exported(policy, study, study.study.target)
        if different:
            first = f"{different[0]} ({len(different)} such)"
            say(f"as {study.study.target}, the study's target, runs it, and not as given: {first}")
        for line in grouped(kept_wide(policy, model, study.study.target)):
            if line not in different[:1]:
                say(line)
    return policy_for(source, study, clipped, wide)


def policy_from(
    source: str, model: Model, clipped: bool = False, wide: Sequence[str] = ()
) -> Policy:
    """Return the policy `preset:NAME` for `model`, or the one in the JSON file `source`.

    `clipped`: what an older file says of clipping is in the task (see `with_clipping`); else it is
    an InputError. Layers that are `wide` are in float32.
    """
    from policysearch.policy.policy import LayerPolicy
    from policysearch.policy.policy_file import read_clipped, read_policy
    from policysearch.policy.presets import preset

    if source.startswith(PRESET_PREFIX):
        policy = preset(source.removeprefix(PRESET_PREFIX), model.layer_names)
    else:
        policy = read_clipped(Path(source))[0] if clipped else read_policy(Path(source))
    if not wide:
        return policy
    rows = {one_of("--float32", name, model.layer_names): LayerPolicy() for name in wide}
    return replace(policy.with_layers(rows), name=f"{policy.name}, float32 in {', '.join(rows)}")


def check_policy(source: str) -> None:
    """Raise InputError where `preset:NAME` is no preset, or `source` no policy file."""
    from policysearch.policy.policy_file import read_clipped
    from policysearch.policy.presets import PRESETS

    if source.startswith(PRESET_PREFIX):
        one_of("preset", source.removeprefix(PRESET_PREFIX), PRESETS)
        return
    if not Path(source).exists() and (hint := near_miss(source, PRESETS)):
        hint = hint.replace(" '", f" '{PRESET_PREFIX}")
        raise InputError(f"{source}: no such file; expected a policy file, or preset:NAME{hint}")
    read_clipped(Path(source))


def study_and_policy(options: argparse.Namespace) -> tuple[StudySpec, Policy]:
    """Return the study that a command trains in, and the policy as it trains there.

    The clipping of an older policy file is moved into the study's task.
    """
    check_policy(options.policy)
    study = policysearch.load_study(options.study)
    study = replace(study, task=with_clipping(study.task, options.policy))
    wide = getattr(options, "float32", ())  # where the command has it
    return study, policy_in(study, options.policy, clipped=True, wide=wide)


def policy_for(
    source: str, study: StudySpec, clipped: bool = False, wide: Sequence[str] = ()
) -> Policy:
    """Return `policy_from` for a study: a preset with the accumulator its ladder has there."""
    from policysearch.policy.policy import with_accumulator
    from policysearch.space.target import named_as_run

    model = study.task.build_model(study.task.load_dataset())
    policy = policy_from(source, model, clipped, wide)
    summed = study.space.accumulators[0]
    if source.startswith(PRESET_PREFIX) and summed != "float32":  # a preset may say its own
        policy = with_accumulator(policy, summed)
    return study.parallel.spread(named_as_run(policy, model, study.study.target))


def say(line: str) -> None:
    """Write a line to standard error, or nowhere if that is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Raise InputError for the first of these options that was given, with the reason."""
    for name in names:
        value = getattr(options, name)
        if value is not None:
            words = " ".join(value) if isinstance(value, list) else value
            raise InputError(f"--{name.replace('_', '-')}: {words} {why}")


def at_least_one(options: argparse.Namespace, *names: str) -> None:
    """Raise InputError for the first of these options that was given and is below 1."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"--{name}: {value}; expected at least 1")
