"""Prices of per-layer policies beside training steps timed on the same machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.validation.agreement import Agreement, agreement
from benchmarks.validation.measured_policies import (
    POLICIES,
    SUBJECTS,
    Subject,
    low_layers,
    policy_of,
    product_layers,
)
from policysearch.cost.devices import Accuracy, Device
from policysearch.cost.measured import calls_of, measured_time
from policysearch.cost.price import low_precision_share
from policysearch.cost.stacks import stack_named
from policysearch.cost.timings import Timings
from policysearch.graph import Graph
from policysearch.verify.calibrate import Bench, host_seconds
from policysearch.verify.clock import Clock, one_thread, quartile
from policysearch.verify.torch_step import net

STACK = "torch.eager"
TURN_SECONDS = 5e-3
"""A step shorter than this is run once untimed, then timed over as many as take so long."""
SMALL_ROUNDS = 3
"""Rounds of a small net for one of the others, whose steps are less disturbed."""
EVEN, ODD = slice(0, None, 2), slice(1, None, 2)


@dataclass(frozen=True)
class NetResult:
    """What one net showed: of each policy its share of low-precision FLOPs and speedups.

    `speedups` are measured, `halves` those of even and of odd rounds; `own` are priced from the
    net's own kernels timed between the steps, `own_halves` from even and odd rounds of them, and
    `generic` from a device row alone. All over float32. `float32_seconds` is its measured step,
    `final_loss` the loss [] of the last step.
    """

    name: str
    small: bool
    float32_seconds: float
    final_loss: float
    shares: tuple[float, ...]
    speedups: tuple[float, ...]
    halves: tuple[tuple[float, ...], tuple[float, ...]]
    own: tuple[float, ...]
    own_halves: tuple[tuple[float, ...], tuple[float, ...]]
    generic: tuple[float, ...]

    @property
    def own_agreement(self) -> Agreement:
        return agreement(self.own, self.speedups, self.halves, self.shares)

    @property
    def generic_agreement(self) -> Agreement:
        return agreement(self.generic, self.speedups, self.halves, self.shares)


def measured_report(
    device: Device,
    place: torch.device,
    rounds: int,
    rng: np.random.Generator,
    said: Callable[[str], None] = lambda line: None,
    names: Sequence[str] = (),
    policies: int = POLICIES,
) -> tuple[NetResult, ...]:
    """Train policies of each net on this machine and return them beside their prices.

    `names` are of the `SUBJECTS` of the kind of `place`; by default all. `device` is its row from
    generic kernels. `said` is told how far it is.
    """
    clock, subjects = Clock(place), SUBJECTS[place.type]
    with one_thread():
        return tuple(
            _Trial(name, subjects[name], device, clock, rng, policies).run(rounds, said)
            for name in names or subjects
        )


def accuracy(results: Sequence[NetResult]) -> Accuracy:
    """Return the errors of the prices from the device row, over the policies of all nets."""
    errors = [abs(a / b - 1) for r in results for a, b in zip(r.generic, r.speedups, strict=True)]
    again = [abs(a / b - 1) for r in results for a, b in zip(*r.halves, strict=True)]
    return Accuracy(
        mean_error=float(np.mean(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        retest_error=float(np.mean(again)),
        policies=len(errors),
    )


class _Trial:
    """One net: its steps under float32 and each policy, and its kernels, timed in turn."""

    def __init__(
        self,
        name: str,
        subject: Subject,
        device: Device,
        clock: Clock,
        rng: np.random.Generator,
        policies: int,
    ) -> None:
        self.name, self.device, self.clock, self.rng = name, device, clock, rng
        self.taken: list[list[float]] = []
        self.small = subject.small
        self.net = net(subject.build(), subject.optimizer, subject.batch_size, rng, clock.place)
        layers = product_layers(self.net.graph)
        lows = (frozenset[str](), *low_layers(layers, policies, rng))
        self.graphs = [
            self.net.policy_graph(policy_of(low, layers, self.net.model)) for low in lows
        ]
        self.steps = [self.net.step(graph) for graph in self.graphs]
        stack = stack_named(STACK)
        tasks = [task for g in self.graphs for task in calls_of(g, self.device, stack)]
        self.bench = Bench((task.work for task in tasks), self.clock, self.rng)
        self.loss = float("nan")

    def run(self, rounds: int, said: Callable[[str], None]) -> NetResult:
        self.taken = [[] for _ in self.steps]
        turns = [self.turn(step) for step in self.steps]
        rounds *= SMALL_ROUNDS if self.small else 1
        for number in range(rounds):
            for i in self.rng.permutation(len(self.steps)):
                self.time(int(i), turns[i])
            self.bench.round()
            said(f"{self.name}: round {number + 1} of {rounds}")
        self.loss = float(self.steps[0]())
        each, step = host_seconds(self.clock, self.device, self.rng)
        return self.result(replace(self.device, host_seconds=each, host_step_seconds=step))

    def turn(self, step: Callable[[], object]) -> int:
        """Return how many steps are timed together: 1 where they are long."""
        step()
        return max(1, round(TURN_SECONDS / self.clock.seconds(step)))

    def time(self, i: int, calls: int) -> None:
        if calls > 1:
            self.steps[i]()
        self.taken[i].append(self.clock.seconds(self.steps[i], calls))

    def result(self, device: Device) -> NetResult:
        whole, even, odd = slice(None), EVEN, ODD
        low = self.graphs[1:]
        return NetResult(
            name=self.name,
            small=self.small,
            float32_seconds=quartile(self.taken[0]),
            final_loss=self.loss,
            shares=tuple(low_precision_share(graph) for graph in low),
            speedups=self.measured(whole),
            halves=(self.measured(even), self.measured(odd)),
            own=self.priced(device, self.bench.timings(whole)),
            own_halves=(
                self.priced(device, self.bench.timings(even)),
                self.priced(device, self.bench.timings(odd)),
            ),
            generic=self.priced(self.device, self.device.timings),
        )

    def measured(self, part: slice) -> tuple[float, ...]:
        float32, *others = (quartile(times[part]) for times in self.taken)
        return tuple(float32 / seconds for seconds in others)

    def priced(self, device: Device, timings: Timings) -> tuple[float, ...]:
        row = replace(device, timings=timings)
        float32, *others = (_seconds(graph, row) for graph in self.graphs)
        return tuple(float32 / seconds for seconds in others)


def _seconds(graph: Graph, device: Device) -> float:
    return measured_time(graph, device, stack_named(STACK)).step_seconds
