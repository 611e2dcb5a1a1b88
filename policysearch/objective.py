"""What a policy is worth: its loss gap to float32, measured, and its speed and memory, modeled."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.device_file import device_at
from policysearch.cost.phases import over_phases
from policysearch.cost.price import PolicyCost, StepPrice, compare, step_price
from policysearch.cost.stacks import stack_named
from policysearch.data.datasets import Dataset
from policysearch.data.shared import shared
from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.horizon import stretched
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import Fast, check_fast
from policysearch.train.loss_scale import scale_changes
from policysearch.train.lost import Lost
from policysearch.train.swamped import NOT_COUNTED, Swamped
from policysearch.train.tasks import Task
from policysearch.train.tracing import Tracing
from policysearch.train.trainer import train

DIVERGED_GAP = 100.0
"""Loss gap in nats of a run that diverged: worse than any run that did not, and finite."""

JITTER = 1e-6
"""Relative change of the initial parameters that `noise` measures the spread under."""


CURVE_SHARES = (0.125, 0.25, 0.5, 1.0)
"""Where along a run its loss is kept: a gap that grows says more than one that is large."""


@dataclass(frozen=True)
class Measurement:
    """What one training run showed, before it is compared with float32.

    `tail_loss`: mean training loss over the last steps, in nats; None where the run diverged, in
    step `diverged_at`. `overflows` and `underflows`: (layer, count) pairs. `curve` holds
    (steps taken, mean loss of the last of them in nats) at the shares CURVE_SHARES of the run,
    each mean over the same share of the task's tail; what was not reached is left out.
    `swamped`: updates that vanish. `lost`: by layer and role what overflowed, underflowed or was
    swamped, () in records older than it. `scales`: (step, loss scale from there on) pairs, () where
    the policy has none. `skips`: the steps skipped. `fast`: what ran, as in
    `rounding.rounder.FASTS`. `first_loss`: training loss of the first batch, before any update, in
    nats; None where it is not finite.
    """

    tail_loss: float | None
    validation_accuracy: float
    diverged_at: int | None
    skipped_steps: int
    overflows: tuple[tuple[str, int], ...]
    underflows: tuple[tuple[str, int], ...]
    fast: str = ""
    curve: tuple[tuple[int, float], ...] = ()
    swamped: Swamped = NOT_COUNTED
    lost: tuple[Lost, ...] = ()
    scales: tuple[tuple[int, float], ...] = ()
    skips: tuple[int, ...] = ()
    first_loss: float | None = None

    @property
    def diverged(self) -> bool:
        """Whether the run was lost; see `train.trainer.Run`."""
        return self.diverged_at is not None

    @property
    def divergence(self) -> str:
        """Say in which step the run diverged, and the layer that overflowed most, if any did."""
        if not self.overflows:
            return f"diverged in step {self.diverged_at}"
        layer, _ = max(self.overflows, key=lambda pair: pair[1])
        return f"diverged in step {self.diverged_at}, most overflows in {layer}"


@dataclass(frozen=True)
class Failure:
    """Why a training run ended without a measurement, in one line."""

    reason: str


Outcome = Measurement | Failure

GapCurve = tuple[tuple[int, float, float], ...]
"""(steps taken, loss gap, float32's own loss there), in nats."""


@dataclass(frozen=True)
class Score:
    """A policy's worth with one training seed.

    `loss_gap`: tail loss minus that of float32 with the same seed and batches, in nats;
    DIVERGED_GAP where the run diverged, and at most that. `gap_curve`: (steps taken, gap,
    float32's own loss there) at CURVE_SHARES of the run, as far as both runs got.
    """

    loss_gap: float
    validation_accuracy: float
    diverged: bool
    overflows: tuple[tuple[str, int], ...]
    underflows: tuple[tuple[str, int], ...]
    skipped_steps: int
    cost: PolicyCost
    fast: str = ""
    swamped: Swamped = NOT_COUNTED
    lost: tuple[Lost, ...] = ()
    scales: tuple[tuple[int, float], ...] = ()
    skips: tuple[int, ...] = ()
    gap_curve: GapCurve = ()


class Objective:
    """Trains policies of one task and prices them for one device and stack.

    `cost_batch_size` is the batch of the priced step, by default that of the task. `fast` is how
    it trains; it changes no result. `parallel` spreads float32 over devices; others say their own.
    """

    def __init__(
        self,
        task: Task,
        device: str,
        stack: str,
        cost_batch_size: int | None = None,
        fast: Fast | None = None,
        parallel: Parallel = Parallel(),
    ) -> None:
        self.task = task
        self.parallel = parallel
        self.fast = check_fast(fast)
        self.device = device_at(device)
        self.stack = stack_named(stack)
        self.cost_batch_size = cost_batch_size or task.batch_size
        self._baselines: dict[int, Measurement] = {}
        self._tracings: dict[int, Tracing] = {}

    @cached_property
    def dataset(self) -> Dataset:
        """The task's data, loaded once."""
        return self.task.load_dataset()

    def shared_task(self) -> Task:
        """Return the task for processes that are started with it, which share its data.

        Where the system cannot share, each of them loads what it can load for itself.
        """
        with suppress(OSError):
            self.dataset = shared(self.dataset)
            return replace(self.task, data=self.dataset)
        return self.task

    @cached_property
    def model(self) -> Model:
        """The task's model for its data."""
        return self.task.build_model(self.dataset)

    @cached_property
    def float32(self) -> Policy:
        """The policy every other is compared with."""
        return preset("float32", self.model.layer_names)

    @cached_property
    def float32_price(self) -> StepPrice:
        """The modeled step under float32, made once."""
        return self.step_price(replace(self.float32, parallel=self.parallel))

    def step_graph(self, policy: Policy) -> Graph:
        """Return the priced step under `policy`, every cast a node, on the batch of one group."""
        batch = policy.parallel.batch(self.cost_batch_size)
        made = self._tracings.setdefault(batch, Tracing(self.task, self.model, batch))
        return made.step_graph(policy)

    def price(self, policy: Policy) -> PolicyCost:
        """Return the modeled cost of a step, the mean one over its phases; nothing is trained."""
        steps = self.task.steps
        starts = [0, *(phase.first_step for phase in policy.phases if phase.first_step < steps)]
        lengths = [end - start for start, end in pairwise([*starts, steps])]
        costs = [self._step_cost(policy.at_step(start)) for start in starts]
        return over_phases(list(zip(lengths, costs, strict=True)))

    def _step_cost(self, policy: Policy) -> PolicyCost:
        graph = self.step_graph(policy)
        step = step_price(graph, self.device, self.stack, policy)
        return compare(graph, step, self.float32_price)

    def step_price(self, policy: Policy) -> StepPrice:
        """Return the modeled first step kernel by kernel, and its memory part by part."""
        return step_price(self.step_graph(policy), self.device, self.stack, policy)

    def measure(
        self, policy: Policy, seed: int, jitter: float = 0.0, steps: int | None = None
    ) -> Measurement:
        """Train under `policy` and return what was seen; equal arguments give equal results.

        `steps` other than the task's stretch or shorten the whole recipe, its tail included, and
        the policy's phases and scheduled loss scale with it.
        """
        if steps is not None:
            policy = stretched(policy, steps / self.task.steps)
        task = self.task if steps is None else self.task.with_steps(steps)
        data, net, fast = self.dataset, self.model, self.fast
        run = train(task, policy, seed, dataset=data, model=net, jitter=jitter, fast=fast)
        return Measurement(
            tail_loss=float(run.tail_loss) if np.isfinite(run.tail_loss) else None,
            validation_accuracy=float(run.validation_accuracy),
            diverged_at=run.diverged_at,
            skipped_steps=int(np.count_nonzero(run.skipped)),
            overflows=tuple((str(layer), int(count)) for layer, count in run.overflows),
            underflows=tuple((str(layer), int(count)) for layer, count in run.underflows),
            curve=curve_of(run.losses, task.steps, task.tail_steps),
            fast=run.fast,
            swamped=run.swamped,
            lost=run.lost,
            scales=scale_changes(policy.loss_scale, run.scales),
            skips=tuple(int(step) for step in np.flatnonzero(run.skipped)),
            first_loss=float(run.losses[0]) if np.isfinite(run.losses[:1]).all() else None,
        )

    def baseline(self, seed: int) -> Measurement:
        """Return the float32 run with `seed`, trained once."""
        if seed not in self._baselines:
            self._baselines[seed] = self.measure(self.float32, seed)
        return self._baselines[seed]

    def evaluate(self, policy: Policy, seed: int) -> Score:
        """Return the score of `policy` with one training seed."""
        return score(self.measure(policy, seed), self.baseline(seed), self.price(policy))

    def noise(self, seed: int) -> float:
        """Return how far the float32 tail loss moves when the initial parameters do, in nats.

        That is the smallest gap that means anything: JITTER is far below any format's rounding.
        """
        jittered = self.measure(self.float32, seed, JITTER)
        return abs(gap(jittered, self.baseline(seed)))


def curve_of(
    losses: NDArray[np.float64], steps: int, tail_steps: int
) -> tuple[tuple[int, float], ...]:
    """Return (steps taken, mean loss up to there in nats) at CURVE_SHARES of a run of `steps`."""
    points = []
    for share in CURVE_SHARES:
        taken, window = math.ceil(steps * share), max(1, round(tail_steps * share))
        part = losses[max(0, taken - window) : taken]
        if taken <= len(losses) and np.isfinite(part).all():
            points.append((taken, math.fsum(part) / len(part)))
    return tuple(points)


def gap_curve(measurement: Measurement, baseline: Measurement | None) -> GapCurve:
    """Return (steps taken, gap, float32's own loss there), in nats, where both runs got.

    A point where float32's loss is zero is left out: nothing can be told beside it.
    """
    beside = dict(baseline.curve) if baseline else {}
    return tuple(
        (taken, loss - beside[taken], beside[taken])
        for taken, loss in measurement.curve
        if beside.get(taken)
    )


def gap(measurement: Measurement, baseline: Measurement | None) -> float:
    """Return the loss gap in nats, DIVERGED_GAP at most and where either run has no tail loss."""
    if measurement.tail_loss is None or baseline is None or baseline.tail_loss is None:
        return DIVERGED_GAP
    return min(measurement.tail_loss - baseline.tail_loss, DIVERGED_GAP)


def score(measurement: Measurement, baseline: Measurement | None, cost: PolicyCost) -> Score:
    """Return the score of a run against float32's with the same seed and batches, if it has one."""
    return Score(
        loss_gap=gap(measurement, baseline),
        validation_accuracy=measurement.validation_accuracy,
        diverged=measurement.diverged,
        overflows=measurement.overflows,
        underflows=measurement.underflows,
        skipped_steps=measurement.skipped_steps,
        cost=cost,
        fast=measurement.fast,
        swamped=measurement.swamped,
        lost=measurement.lost,
        scales=measurement.scales,
        skips=measurement.skips,
        gap_curve=gap_curve(measurement, baseline),
    )
