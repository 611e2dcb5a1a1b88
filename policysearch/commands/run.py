"""`run` and `confirm`: the training of a study, and of its front over longer runs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_out,
    add_processes,
    add_study,
    at_least_one,
    places,
    say,
)
from policysearch.commands.views import next_commands, write_plots
from policysearch.files import make_folder
from policysearch.values import InputError

if TYPE_CHECKING:
    from policysearch.study.results.results import Results
    from policysearch.study.specification import StudySpec
    from policysearch.study.workers.cluster import Cluster

INTERRUPTED = 130

LONG_SECONDS = 3600.0
"""A study that takes as long is asked for on a terminal."""

TLS = ("ca-file", "cert", "key")
"""What `--tls-` options name, in the words of dask's own commands."""


def _run_arguments(run: argparse.ArgumentParser) -> None:
    from policysearch.rounding.rounder import EXECUTORS

    add_study(run)
    run.add_argument("--trials", type=int, metavar="N", help="policies to train, in all")
    run.add_argument(
        "--goal", metavar="WORDS", help='what to search for, as "fastest gap<=0.01 memory<=0.6"'
    )
    add_processes(run, " (one per core)")
    run.add_argument(
        "--cluster", metavar="ADDRESS|local:N", help="train on the workers of a dask scheduler"
    )
    for part in TLS:
        run.add_argument(
            f"--tls-{part}", type=Path, metavar="PEM", help="of a scheduler at tls://, as dask's"
        )
    run.add_argument(
        "--fast",
        choices=EXECUTORS,
        help="what emulates; all but torch give the same bits, and torch has a journal of its own",
    )
    run.add_argument("--place", metavar="cpu|cuda[:N]", help="where torch runs")
    run.add_argument(
        "--accept-changes",
        action="store_true",
        help="add to results that other code or libraries made; recorded",
    )
    run.add_argument(
        "--no-confirm", action="store_true", help="leave out the longer runs of the front"
    )
    run.add_argument(
        "--retry-failed", action="store_true", help="start runs again that were recorded as failed"
    )
    run.add_argument("--yes", action="store_true", help="begin a long study without being asked")
    add_out(run)


def _run(options: argparse.Namespace) -> None:
    from policysearch.study.goal import goal_from_words, goal_table, with_goal
    from policysearch.study.specification import space_of

    at_least_one(options, "trials", "processes")
    goal = None if options.goal is None else goal_from_words(options.goal)
    spec = policysearch.load_study(options.study)
    spec = spec if options.goal is None else with_goal(spec, options.goal)
    spec = spec.emulated_by(options.fast, options.place)
    make_folder(options.out)
    _say_space(spec)
    _say_estimate(options, spec)
    on = "".join(f" --{name} {value}" for name, value in _cluster_options(options) if value)
    try:
        with _cluster_of(options) as cluster:
            results = _search(options, spec, cluster)
    except KeyboardInterrupt:
        say(
            f"policysearch: interrupted; `policysearch run {places(options)}{on}` goes on from here"
        )
        raise SystemExit(INTERRUPTED) from None

    from policysearch.report.table import front_table  # which a refusal need not wait for
    from policysearch.study.results.idle import idle_lines

    print(front_table(results))
    print("\n".join(["", *idle_lines(results, space_of(spec))]))
    write_plots(results, options.out)
    print(next_commands(results, options))
    if goal is not None:
        print(f"show, plot and export answer this goal once {options.study} has it:")
        print(goal_table(goal))


def _say_estimate(options: argparse.Namespace, spec: StudySpec) -> None:
    """Say how long a new study will take on this machine; on a terminal ask for a long one."""
    from policysearch.api import default_storage
    from policysearch.study.estimate import estimate, said

    storage = options.storage or default_storage(spec)
    if options.cluster is not None or storage.exists():
        return
    make_folder(storage.parent)
    spec = spec if options.trials is None else spec.with_trials(options.trials)
    if options.no_confirm:
        spec = replace(spec, study=replace(spec.study, confirm_share=0.0))
    found = estimate(spec, options.processes)
    for line in found.lines() if found.seconds >= LONG_SECONDS else found.lines()[:1]:
        say(f"policysearch: {line}")
    asked = sys.stdin.isatty() and sys.stderr.isatty() and not options.yes
    if asked and found.seconds >= LONG_SECONDS:
        say(f"policysearch: begin these {said(found.seconds)}? [y/N] ")
        if input().strip().lower() not in ("y", "yes"):
            raise SystemExit(INTERRUPTED)


def _estimate_arguments(command: argparse.ArgumentParser) -> None:
    add_study(command)
    add_processes(command, " (one per core)")


def _estimate(options: argparse.Namespace) -> None:
    from policysearch.study.estimate import estimate

    at_least_one(options, "processes")
    print("\n".join(estimate(policysearch.load_study(options.study), options.processes).lines()))


def _say_space(spec: StudySpec) -> None:
    """Say which rules of the study win over which, and which formats nothing here can run in."""
    from policysearch.rewrite.format_rules import overruled
    from policysearch.space.rules import rules_for
    from policysearch.space.target import left_out

    lines = list(spec.notices)
    if spec.rules or spec.study.target:
        model = spec.task.build_model(spec.task.load_dataset())
        lines += overruled(rules_for(spec.rules, model)) if spec.rules else ()
        lines += left_out(spec.space, model, spec.study.target)
    for line in lines:
        say(line)


def _cluster_options(options: argparse.Namespace) -> list[tuple[str, Any]]:
    """Return the options of `run` that say which cluster, and what was given of each."""
    names = ("cluster", *(f"tls-{part}" for part in TLS))
    return [(name, getattr(options, name.replace("-", "_"))) for name in names]


@contextlib.contextmanager
def _cluster_of(options: argparse.Namespace) -> Iterator[Cluster | None]:
    """Yield the cluster that the command was told to train on, None where it was told none."""
    from policysearch.study.workers.cluster import Tls, cluster_at

    _, *tls = _cluster_options(options)
    files = [file for _, file in tls]
    if any(files) and (not all(files) or options.cluster is None):
        alone = " and ".join(f"--{name}" for name, file in _cluster_options(options) if file)
        valid = ", ".join(f"--tls-{part}" for part in TLS)
        raise InputError(f"{alone} alone; expected {valid}, all with --cluster, or none")
    if options.cluster is None:
        yield None
        return
    if options.processes is not None:
        raise InputError("--processes: given with --cluster; expected one of them")
    with cluster_at(options.cluster, Tls(*files) if all(files) else None) as cluster:
        say(f"dashboard {cluster.client.dashboard_link}")
        yield cluster


def _search(options: argparse.Namespace, spec: StudySpec, cluster: Cluster | None) -> Results:
    from policysearch.report.progress import Bar

    study = spec.study
    with Bar(options.trials or study.trials, beside=cluster.status if cluster else None) as bar:
        results = policysearch.run_study(
            spec,
            options.storage,
            trials=options.trials,
            processes=options.processes,
            progress=bar,
            accept_changes=options.accept_changes,
            retry_failed=options.retry_failed,
            executor=cluster,
        )
    if options.no_confirm or not study.confirm_share or not results.front:
        return results
    return _longer_runs(
        *(options, spec, study.confirm_factor, 1, study.confirm_share),
        executor=cluster,
        retry_failed=options.retry_failed,
    )


def _longer_runs(
    options: argparse.Namespace,
    spec: StudySpec,
    factor: float,
    seeds: int,
    share: float | None = None,
    every: bool = False,
    executor: Cluster | None = None,
    retry_failed: bool = False,
) -> Results:
    """Train the front, or `every` policy, `factor` times longer, and return the results."""
    from policysearch.report.progress import Bar

    what = "runs that confirm " + ("each policy" if every else "the front")
    with Bar(what=what, beside=executor.status if executor else None) as bar:
        return policysearch.confirm_study(
            spec,
            options.storage,
            factor=factor,
            seeds=seeds,
            share=share,
            every=every,
            retry_failed=retry_failed,
            processes=options.processes,
            progress=bar,
            executor=executor,
        )


def _confirm_arguments(confirm: argparse.ArgumentParser) -> None:
    add_study(confirm)
    confirm.add_argument("--steps", default="10x", metavar="10x|N", help="how long (10x)")
    confirm.add_argument("--seeds", type=int, default=1, metavar="K", help="seeds of each (1)")
    confirm.add_argument("--all", action="store_true", help="each policy, not the front alone")
    add_processes(confirm)


def _confirm(options: argparse.Namespace) -> None:
    from policysearch.report.table import confirmed_table
    from policysearch.study.estimate import longer_runs

    at_least_one(options, "seeds", "processes")
    spec = policysearch.load_study(options.study)
    factor = _factor(options.steps, spec)
    found = policysearch.load_results(spec, options.storage)
    if line := longer_runs(found, factor, options.seeds, options.all, options.processes):
        say(f"policysearch: {line}")
    print(
        confirmed_table(
            _longer_runs(options, spec, factor, options.seeds, every=options.all, retry_failed=True)
        )
    )


def _factor(text: str, spec: StudySpec) -> float:
    """Return how many times the task's steps `text` means: "10x", or a number of steps."""
    try:
        factor = float(text[:-1]) if text.endswith("x") else int(text) / spec.task.steps
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < 1e6:
        raise InputError(
            f"--steps: {text!r}; expected a factor as 10x, or steps from the task's on"
        )
    return factor


COMMANDS = (
    Command(
        10,
        "run",
        "search; goes on with a study that was interrupted",
        _run,
        _run_arguments,
        example="run studies/mlp-digits.toml",
    ),
    Command(
        20,
        "confirm",
        "train the front longer, on seeds of its own",
        _confirm,
        _confirm_arguments,
        example="confirm studies/mlp-digits.toml --steps 10x",
    ),
    Command(
        7,
        "estimate",
        "how long a study will take on this machine",
        _estimate,
        _estimate_arguments,
        example="estimate net.toml",
    ),
)
