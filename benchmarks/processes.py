"""Throughput of two processes that train two policies, against one process alone.

    python -m benchmarks.processes

The clock is wall time here, because the processes compete for it: on a machine that does other
work at the same time that ratio says little. Beside it stands twice the ratio of CPU seconds per
step, which leaves out waiting for a core but not the shared caches and memory: what an idle
machine would give. Rounds with one and with two processes alternate.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.nets import NETS, our_step
from benchmarks.timing import machine, parser, pin_one_thread, show, write_csv

POLICIES = ("float16", "bfloat16")
WANTED = 1.8
COLUMNS = ("model", "batch", "round", "processes", "wall_seconds", "cpu_seconds", "steps")


def work(
    net: str, batch: int, policy: str, barrier: Barrier, steps: int, rounds: int, spent: Any
) -> None:
    """Train `steps` steps per round, starting and ending together with the parent.

    `spent` takes the CPU seconds of every round.
    """
    pin_one_thread()
    step = our_step(NETS[net](), policy, batch, fast=None)
    step()
    for number in range(rounds):
        barrier.wait()
        start = time.process_time()
        for _ in range(steps):
            step()
        spent[number] = time.process_time() - start
        barrier.wait()


@dataclass(frozen=True)
class Group:
    """Processes that run the same rounds, and what each round took them."""

    barrier: Barrier
    processes: list[Any]
    cpu_seconds: list[Any]
    wall_seconds: list[float]

    @property
    def best_cpu_seconds(self) -> float:
        """The least CPU seconds of a round, averaged over the processes."""
        return statistics.fmean(min(spent) for spent in self.cpu_seconds)


def measure(net: str, batch: int, steps: int, rounds: int) -> dict[int, Group]:
    """Return the rounds with one and with two processes."""
    context = multiprocessing.get_context("spawn")
    groups: dict[int, Group] = {}
    for count in (1, 2):
        barrier = context.Barrier(count + 1)
        spent = [context.RawArray("d", rounds) for _ in range(count)]
        started: list[Any] = []
        for policy, seconds in zip(POLICIES, spent, strict=False):
            given = (net, batch, policy, barrier, steps, rounds, seconds)
            started.append(context.Process(target=work, args=given, daemon=True))
            started[-1].start()
        groups[count] = Group(barrier, started, spent, [])
    for _ in range(rounds):
        for group in groups.values():
            group.barrier.wait()
            start = time.perf_counter()
            group.barrier.wait()
            group.wall_seconds.append(time.perf_counter() - start)
    for group in groups.values():
        for process in group.processes:
            process.join()
    return groups


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--steps", type=int, default=100, help="per round and process")
    given = options.parse_args()
    rows, lines = [], []
    for net in NETS:
        groups = measure(net, given.batch, given.steps, given.rounds)
        one, two = (min(group.wall_seconds) for group in groups.values())
        alone, both = (group.best_cpu_seconds for group in groups.values())
        middle = [statistics.median(group.wall_seconds) for group in groups.values()]
        ratios = [2 * one / two, 2 * middle[0] / middle[1], 2 * alone / both]
        rows.append([net, given.steps / one, 2 * given.steps / two, *ratios])
        for count, group in groups.items():
            for i, wall in enumerate(group.wall_seconds):
                cpu = statistics.fmean(spent[i] for spent in group.cpu_seconds)
                lines.append([net, given.batch, i, count, wall, cpu, given.steps])
    columns = (
        *("net", "one process, steps/s", "two, steps/s", "ratio of best", "ratio of medians"),
        *("2 x ratio of CPU",),
    )
    show(f"Throughput at batch {given.batch}, wanted {WANTED}", columns, rows)
    print(f"\n{machine()}")
    write_csv(given.out / "processes.csv", COLUMNS, lines)


if __name__ == "__main__":
    main()
