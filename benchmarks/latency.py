"""What a trial of a study takes beside training: CPU time of asking, telling and pricing.

    python -m benchmarks.latency [--tables NAME ...] [--repeats 3]

Runs the study file of a table of `benchmarks.search` whose policies are listed, with a gap of the
table in place of every run. "ask" chooses a policy and records that it was asked for; "tell"
records its runs and the trial, each with an fsync; "prices" is the cost model, whoever asks for it;
"rest" is all else of the process. The first policy that the searcher chooses is left out: with it
every policy of the space is priced. Each trial's parts are the least of the repeats, which ask for
the same policies. Exits with 1 where ask and tell together take MOST_MS at a trial, the prices that
they need apart.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import optuna

from benchmarks.search.live import Live, live
from benchmarks.search.tables import NAMES, Table, load
from benchmarks.search.why import Known
from benchmarks.timing import pin_one_thread
from policysearch.objective.objective import Objective
from policysearch.objective.score import DIVERGED_GAP, Measurement
from policysearch.policy.policy import Policy
from policysearch.search.hypervolume import Array
from policysearch.search.searcher import Searcher
from policysearch.study.coordinator import Coordinator
from policysearch.study.results.results import Results
from policysearch.study.study import run_study
from policysearch.study.workers.executors import Job

TRIALS = 200
SHOWN = (50, 100, 200)
WINDOW = 10
"""Medians are over so many trials, up to each of those shown."""

MOST_MS = 50.0
PARTS = ("ask", "tell", "prices", "rest")
OURS = "runs"
"""What this program does in place of runs, which no study does."""

LOSS = 0.5
"""float32's loss in nats; that of others is a gap more."""


class Split:
    """CPU seconds by part; a part within another counts for itself alone."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys((*PARTS, OURS), 0.0)
        self._within, self._since = ["rest"], time.process_time()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens within for `name`."""
        self.mark()
        self._within.append(name)
        try:
            yield
        finally:
            self.mark()
            self._within.pop()

    def mark(self) -> None:
        """Count the time since the last mark."""
        now = time.process_time()
        self.seconds[self._within[-1]] += now - self._since
        self._since = now

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` as a part."""

        def within(*args: Any) -> Any:
            with self.part(name):
                return call(*args)

        return within


def of_table(table: Table, task: Live) -> Callable[..., Measurement]:
    """Return what measures a policy by the gaps of the table."""
    place = cache(Known(table, task).place)

    def measured(_: Objective, policy: Policy, seed: int, *__: object) -> Measurement:
        gap = 0.0 if policy.name == "float32" else float(table.gaps[seed, place(policy)])
        lost = gap >= DIVERGED_GAP
        return Measurement(None if lost else LOSS + gap, 0.9, 0 if lost else None, 0, (), ())

    return measured


def handed_out(split: Split) -> Callable[[Coordinator], Iterator[Job | None]]:
    """Return `Coordinator.jobs` with what it takes to get each counted as "ask"."""
    handed, done = Coordinator.jobs, object()

    def jobs(self: Coordinator) -> Iterator[Job | None]:
        following = handed(self)
        while True:
            with split.part("ask"):
                job = next(following, done)
            if job is done:
                return
            assert job is None or isinstance(job, Job)
            yield job

    return jobs


def trial_seconds(table: Table, task: Live) -> tuple[Array, int]:
    """Return the CPU seconds [trials, parts] of a study, and which trial made the prices."""
    split, marks, listed, ask = Split(), list[list[float]](), list[int](), Searcher.ask

    def asked(self: Searcher, *args: Any) -> Any:
        listed[:] = listed or [len(marks)]
        return ask(self, *args)

    def progress(trained: float, _: Callable[[], Results]) -> None:
        if trained >= len(marks) + 1:
            split.mark()
            marks.append([split.seconds[name] for name in PARTS])

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        for owner, method, call in (
            (Objective, "measure", split.counted(OURS, of_table(table, task))),
            (Objective, "price", split.counted("prices", Objective.price)),
            (Coordinator, "tell", split.counted("tell", Coordinator.tell)),
            (Coordinator, "jobs", handed_out(split)),
            (Searcher, "ask", asked),
        ):
            stack.enter_context(mock.patch.object(owner, method, call))
        journal = Path(name) / "latency.journal"
        run_study(
            task.spec.with_trials(TRIALS).to_the_end(), journal, processes=0, progress=progress
        )
    return np.diff(np.array(marks), axis=0), listed[0] - 1


def report(name: str, repeats: int) -> bool:
    """Print what trials of one study take; return whether each asks and tells in time."""
    table, task = load(name), live(name)
    assert task is not None
    found = [trial_seconds(table, task) for _ in range(repeats)]
    ms = np.min([seconds for seconds, _ in found], axis=0) * 1e3
    first = found[0][1]
    print(f"{name}: {len(table.costs)} policies, CPU ms per trial, medians of {WINDOW}")
    for count in SHOWN:
        parts = np.median(ms[count - 1 - WINDOW : count - 1], axis=0)
        said = "  ".join(f"{n} {value:5.1f}" for n, value in zip(PARTS, parts, strict=True))
        total = np.median(ms[count - 1 - WINDOW : count - 1].sum(axis=1))
        print(f"  at {count:3} trials: {said}  total {total:5.1f}")
    most = float(ms[first + 1 :, :2].sum(axis=1).max())
    print(f"  ask and tell at most {most:.1f}; the first, with all prices, {ms[first].sum():.0f}")
    return most < MOST_MS


def main() -> int:
    """Print every study's figures; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runnable = [name for name in NAMES if live(name) is not None]
    parser.add_argument("--tables", nargs="+", choices=runnable, default=["mlp-digits-0.1.0"])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    pin_one_thread()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    good = [report(name, options.repeats) for name in options.tables]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
