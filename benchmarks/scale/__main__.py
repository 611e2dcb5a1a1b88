"""What a cluster gives: the real coordinator against simulated workers, and the trainings it costs.

    python -m benchmarks.scale [--workers 1 4 16 64 256 1024] [--mean-seconds 55] [--rounds 6]
                               [--in-flight 1 4 5 16]

Trainings are replaced by nothing and their times by measured ones (`run_seconds.json`, made by
`python -m benchmarks.scale.measure`), scaled to a mean of 55 s: a dense net of 10 M parameters over
1,000 steps. The clock is simulated, but the coordinator is real: the CPU time that it takes to ask,
price, tell and record passes on that clock while workers wait, and so do 1.7 ms per run for Dask.
Per number of workers: the share of their time that they train, up to the moment when 95 % of the
runs have ended, and CPU milliseconds of the coordinator per run, by quarters of the study. Then, on
the tables of `benchmarks.search`, the trainings to 95 % of the volume with so many policies under
way, and those of someone who knows every result; 16 workers have 5 policies of three seeds under
way. `benchmarks.scale.sleeping` is the same with a real cluster and real time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.scale import in_flight
from benchmarks.scale.measure import FILE
from benchmarks.search.tables import NAMES
from benchmarks.timing import pin_one_thread
from policysearch.formats import format_named
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement, Outcome
from policysearch.policy.policy import Policy
from policysearch.study.specification import spec_from_text
from policysearch.study.study import run_study
from policysearch.study.workers.executors import Job

DISPATCH_SECONDS = 0.0017
"""CPU time of Dask's client and scheduler per task, measured."""

UNTIL = 0.95
"""Workers count as idle up to the moment when this share of the runs has ended."""

STUDY = """
[study]
name = "scale"
trials = {trials}
least_gain = 0
seeds = [0, 1, 2]
[task]
model = "mlp"
activation = "tanh"
widths = [256, 128, 256, 128, 256]
data = "digits"
batch_size = 64
steps = 150
tail_steps = 50
[cost]
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 65536
batch_size_reason = "fills the device"
[space]
formats = ["float32", "bfloat16", "float16", "float8_e4m3fn"]
base = "torch.autocast.bfloat16"
master_weights = [true, false]
"""


class Simulated:
    """Runs jobs on `workers` that are not there, on a clock that only the coordinator's work and
    drawn run times move; results are told as they end.
    """

    in_order = False

    def __init__(self, workers: int, seconds: np.ndarray) -> None:
        self._workers, self._seconds = workers, seconds
        self._rng = np.random.default_rng(workers)
        self.now = 0.0
        self.spans: list[tuple[float, float]] = []
        """Begin and end of every run, in seconds."""
        self.cpu_seconds: list[float] = []
        """CPU time of the coordinator up to the end of every run."""

    def __call__(self, _: Objective) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        """Yield made-up outcomes in the order in which runs end."""
        source, under_way, taken = iter(jobs), list[tuple[float, int, Job]](), 0
        mark = time.process_time()
        while True:
            while len(under_way) < self._workers and (job := next(source, None)) is not None:
                mark = self._passed(mark)
                self.now += DISPATCH_SECONDS
                ends = self.now + float(self._rng.choice(self._seconds))
                self.spans.append((self.now, ends))
                heapq.heappush(under_way, (ends, taken, job))
                taken += 1
            if not under_way:
                return
            mark = self._passed(mark)
            ends, index, job = heapq.heappop(under_way)
            self.now = max(self.now, ends)
            yield index, outcome(job.policy, job.seed)
            mark = self._passed(mark)
            self.cpu_seconds.append(mark)

    def _passed(self, mark: float) -> float:
        """Let the CPU time since `mark` pass on the clock; return the new mark."""
        here = time.process_time()
        self.now += here - mark
        return here


def outcome(policy: Policy, seed: int) -> Measurement:
    """Return a made-up measurement: a gap that is a sum over layers, and no two alike."""
    coarse = [2.0 ** -format_named(layer.compute).mantissa_bits for _, layer in policy.layers]
    stored = 1.0 if policy.master_weights else 3.0
    noise = int(policy.digest[:6], 16) / 2**24
    gap = 0.02 * stored * math.fsum(c * (1 + i % 3) for i, c in enumerate(coarse))
    return Measurement(0.5 + gap * (1 + 0.1 * noise) + 1e-5 * seed, 0.9, None, 0, (), ())


def row(workers: int, seconds: np.ndarray, rounds: int) -> None:
    """Simulate a study in which every worker has about `rounds` runs, and print its line."""
    trials = max(64, rounds * workers // 3)
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_from_text(STUDY.format(trials=trials), "scale")
        simulated = Simulated(workers, seconds)
        run_study(spec, Path(folder) / "scale.journal", executor=simulated)
    ends = sorted(end for _, end in simulated.spans)
    until = ends[int(UNTIL * len(ends))]
    busy = math.fsum(
        max(0.0, min(end, until) - min(begin, until)) for begin, end in simulated.spans
    )
    marks = simulated.cpu_seconds
    quarters = [marks[(len(marks) - 1) * k // 4] for k in range(5)]
    cost = [4e3 * (after - before) / len(marks) for before, after in itertools.pairwise(quarters)]
    share = busy / (workers * until)
    print(
        f"{workers:5d} workers, {len(ends)} runs of {trials} policies in {ends[-1] / 3600:.2f} h: "
        f"busy {share:.1%} until {UNTIL:.0%} had ended; "
        f"coordinator {' '.join(f'{ms:.1f}' for ms in cost)} ms per run",
        flush=True,
    )


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4, 16, 64, 256, 1024])
    parser.add_argument("--mean-seconds", type=float, default=55.0, help="of a run")
    parser.add_argument("--rounds", type=int, default=6, help="runs per worker, about")
    parser.add_argument("--in-flight", type=int, nargs="*", default=[1, 4, 5, 16])
    parser.add_argument("--tables", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--draws", type=int, default=3, help="of run times, per table and seed")
    options = parser.parse_args()
    seconds = np.array(json.loads(FILE.read_text(encoding="utf-8"))["seconds"])
    seconds *= options.mean_seconds / seconds.mean()
    print(f"run times {seconds.min():.0f} to {seconds.max():.0f} s, mean {seconds.mean():.0f} s")
    pin_one_thread()
    for workers in options.workers:
        row(workers, seconds, options.rounds)
    in_flight.report(list(options.tables), options.in_flight, seconds, options.draws)
    return 0


if __name__ == "__main__":
    sys.exit(main())
