"""A Dask cluster on this machine whose trainings sleep: how busy its workers are, and their waits.

    python -m benchmarks.scale.sleeping [--workers 16] [--mean-seconds 6] [--rounds 8]

Scheduler, workers, coordinator and journal are real; a training sleeps for a measured run time
(`run_seconds.json`), scaled to the mean. A worker counts from its first run on, up to the moment
when 95 % of the runs have ended. Its waits are from the end of one run to the beginning of its
next. CPU time is of the coordinator's thread, and of the whole process with Dask's scheduler in it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.scale.__main__ import STUDY, UNTIL, outcome
from benchmarks.scale.measure import FILE
from policysearch.objective.score import Outcome
from policysearch.study.specification import spec_from_text
from policysearch.study.study import run_study
from policysearch.study.workers import cluster
from policysearch.study.workers.cluster import cluster_at
from policysearch.study.workers.executors import Job

Spans = list[tuple[float, float]]
"""Begin and end of the runs of a worker, in seconds of one clock."""


def slept(seconds: list[float], _: str, job: Job) -> tuple[Outcome, bool]:
    """Sleep for one of `seconds`, drawn by policy and seed; return a made-up outcome."""
    begin = time.time()
    rng = np.random.default_rng([int(job.policy.digest[:8], 16), job.seed])
    time.sleep(float(rng.choice(seconds)))
    spans_of(_worker()).append((begin, time.time()))
    return outcome(job.policy, job.seed), False


def _worker() -> Any:
    from distributed import get_worker

    return get_worker()


def spans_of(dask_worker: Any) -> Spans:
    """Return the runs of a worker so far; kept on it."""
    found: Spans = vars(dask_worker).setdefault("slept", [])
    return found


def busy(every: list[Spans]) -> tuple[float, list[float]]:
    """Return the share of their time that workers train, and all waits in seconds, sorted."""
    ends = sorted(end for spans in every for _, end in spans)
    until = ends[int(UNTIL * len(ends)) - 1]
    trained = math.fsum(min(e, until) - min(b, until) for spans in every for b, e in spans)
    there = math.fsum(max(0.0, until - spans[0][0]) for spans in every if spans)
    pairs = (pair for spans in every for pair in itertools.pairwise(spans))
    waits = [begin - end for (_, end), (begin, _) in pairs if begin < until]
    return trained / there, sorted(waits)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--mean-seconds", type=float, default=6.0, help="of a run")
    parser.add_argument("--rounds", type=int, default=8, help="runs per worker, about")
    options = parser.parse_args()
    seconds = np.array(json.loads(FILE.read_text(encoding="utf-8"))["seconds"])
    seconds *= options.mean_seconds / seconds.mean()
    spec = spec_from_text(STUDY.format(trials=options.rounds * options.workers // 3), "scale")
    work = functools.partial(slept, seconds.tolist())
    with cluster_at(f"local:{options.workers}") as made, tempfile.TemporaryDirectory() as folder:
        before = time.process_time(), time.thread_time()
        with mock.patch.object(cluster, "measured", work):
            run_study(spec, Path(folder) / "sleeping.journal", executor=made)
        whole, own = time.process_time() - before[0], time.thread_time() - before[1]
        every = list(made.client.run(spans_of).values())
    share, waits = busy(every)
    runs = sum(map(len, every))
    middle, most = waits[len(waits) // 2], waits[int(0.95 * len(waits))]
    print(
        f"{len(every)} workers, {runs} runs: busy {share:.1%} until {UNTIL:.0%} had ended; "
        f"waits {1e3 * middle:.0f} ms in the middle, {1e3 * most:.0f} ms at 95 %; coordinator "
        f"{1e3 * own / runs:.1f} ms of CPU per run, {1e3 * whole / runs:.1f} ms with the scheduler"
    )


if __name__ == "__main__":
    main()
