"""What the commands share: arguments, what they name, and safe streams."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policysearch import api
from policysearch.commands.sources import policy_for, policy_from, task_for
from policysearch.nn.model import Model
from policysearch.nn.models import MODELS
from policysearch.policy.policy import Policy
from policysearch.rewrite.format_rules import overruled
from policysearch.space.rules import rules_for
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec
from policysearch.study.workers.cluster import Cluster, cluster_at
from policysearch.train.tasks import Task
from policysearch.values import InputError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]
else:  # the class takes no parameters as the program runs
    Commands = argparse._SubParsersAction


def add_study(command: argparse.ArgumentParser) -> None:
    """Let the command take a study file, and the journal of its results."""
    keys = "a study file, whose keys `policysearch keys` lists"
    command.add_argument("study", type=Path, metavar="STUDY.toml", help=keys)
    add_storage(command)


def add_storage(command: argparse.ArgumentParser) -> None:
    """Let the command take the journal of a study's results."""
    command.add_argument(
        "--storage", type=Path, metavar="FILE", help="journal file (results/<name>.journal)"
    )


def add_task(command: argparse.ArgumentParser) -> None:
    """Let the command take a study, or one of the models, whose step it shows."""
    where = command.add_mutually_exclusive_group()
    where.add_argument("--study", type=Path, metavar="STUDY.toml", help="use the study's task")
    where.add_argument("--model", default="lenet5", help=", ".join(MODELS))


def task_of(options: argparse.Namespace) -> Task:
    """Return the task of the study that was named, or a small one with the model."""
    return api.load_study(options.study).task if options.study else task_for(options.model)


def model_of(options: argparse.Namespace) -> Model:
    """Return the model of that task."""
    task = task_of(options)
    return task.build_model(task.load_dataset())


def policy_of(options: argparse.Namespace, model: Model) -> Policy:
    """Return the policy that the command was given; of a study, as that trains and prices it."""
    if options.study:
        return policy_in(api.load_study(options.study), options.policy)
    return policy_from(options.policy, model)


def policy_in(study: StudySpec, source: str) -> Policy:
    """Return `policy_for` the study, and say where its target runs another than was given."""
    if study.study.target is not None:
        given = policy_from(source, study.task.build_model(study.task.load_dataset()))
        _, different = api.as_exported(given, study, study.study.target)
        if different:
            found = f"{different[0]} ({len(different)} such)"
            say(f"as {study.study.target}, the study's target, runs it, and not as given: {found}")
    return policy_for(source, study)


def places(options: argparse.Namespace) -> str:
    """Return the study file and its journal as they are given to a command."""
    storage = f" --storage {options.storage}" if options.storage else ""
    return f"{options.study}{storage}"


def results_of(options: argparse.Namespace) -> Results:
    """Return what the study that the command was given has found so far."""
    return api.load_results(api.load_study(options.study), options.storage)


@contextlib.contextmanager
def cluster_of(options: argparse.Namespace) -> Iterator[Cluster | None]:
    """Yield the cluster that the command was told to train on, None where it was told none."""
    if options.cluster is None:
        yield None
        return
    if options.processes is not None:
        raise InputError("--processes: given with --cluster; expected one of them")
    with cluster_at(options.cluster) as cluster:
        say(f"dashboard {cluster.client.dashboard_link}")
        yield cluster


def say_overruled(spec: StudySpec) -> None:
    """Say which rules of the study win over which."""
    if spec.rules:
        model = spec.task.build_model(spec.task.load_dataset())
        for line in overruled(rules_for(spec.rules, model)):
            say(line)


def make_streams_safe() -> None:
    """Let a closed stream swallow what is written, and any text be written in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush is silent."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str) -> None:
    """Write a line to standard error, or nowhere if that is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def refuse(options: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Raise InputError for the first of these options that was given, with the reason."""
    for name in names:
        given = getattr(options, name)
        if given is not None:
            words = " ".join(given) if isinstance(given, list) else given
            raise InputError(f"--{name.replace('_', '-')}: {words} {why}")


def at_least_one(options: argparse.Namespace, *names: str) -> None:
    """Raise InputError for the first of these options that was given and is below 1."""
    for name in names:
        given = getattr(options, name)
        if given is not None and given < 1:
            raise InputError(f"--{name}: {given}; expected at least 1")


def add_out(command: argparse.ArgumentParser) -> None:
    """Let the command take where to write."""
    command.add_argument(
        "--out", type=Path, default=api.RESULTS_FOLDER, metavar="DIR", help="where to write"
    )
