"""What training runs showed, and what a policy is worth by them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.price import PolicyCost
from policysearch.policy.policy import Policy
from policysearch.train.loss_scale import scale_changes
from policysearch.train.lost_values import LostValues
from policysearch.train.origin import Origin, first_harm
from policysearch.train.run import Run
from policysearch.train.swamped import NOT_COUNTED, Swamped
from policysearch.train.tasks import Task
from policysearch.values import NO_LAYER

DIVERGED_GAP = 100.0
"""Loss gap in nats of a run that diverged: worse than any run that did not, and finite."""

LOSS_POINTS = 64
"""So many points of a loss are kept, evenly spaced by the logarithm of the steps taken."""

CURVE_SHARES = (0.125, 0.25, 0.5, 1.0)
"""Where along a run its loss is kept: a gap that grows says more than one that is large."""


@dataclass(frozen=True)
class Measurement:
    """What one training run showed, before it is compared with float32.

    `tail_loss`: mean training loss over the last steps, in nats; None where the run diverged, in
    step `diverged_at`. `validation_accuracy`: None where no labels are classes, as in regression.
    `overflows` and `underflows`: (layer, count) pairs. `curve` holds
    (steps taken, mean loss of the last of them in nats) at the shares CURVE_SHARES of the run,
    each mean over the same share of the task's tail; what was not reached is left out.
    `swamped`: updates that vanish. `lost`: by layer and role what overflowed, underflowed or was
    swamped, () in records older than it. `scales`: (step, loss scale from there on) pairs, () where
    the policy has none. `skips`: the steps skipped. `fast`: what ran, as in
    `rounding.rounder.FASTS`. `first_loss`: training loss of the first batch, before any update, in
    nats; None where it is not finite. `resumed_at`: how many of the steps an earlier run had taken
    that this one went on from; it changes nothing else, and plays no part in comparisons.
    `validation_gain`: by how much the loss of a validation label is below that of the best constant
    predictor, mean and standard error over the labels (of a loss of the net's own: below what it
    comes to by chance); None in older records too. `origins`: where the first values that were not
    finite came from, () in older records too. `losses` is `loss_points` of the run, () in older
    records. `wall_seconds` is how long it took, 0 in older records; it plays no part in
    comparisons. `validation_loss`, in `loss_unit` as all losses are ("" in older records: nats),
    and the `metric` of the task: None where there is none, where it is
    not finite, and in older records.
    """

    tail_loss: float | None
    validation_accuracy: float | None
    diverged_at: int | None
    skipped_steps: int
    overflows: tuple[tuple[str, int], ...]
    underflows: tuple[tuple[str, int], ...]
    fast: str = ""
    curve: tuple[tuple[int, float], ...] = ()
    swamped: Swamped = NOT_COUNTED
    lost: tuple[LostValues, ...] = ()
    scales: tuple[tuple[int, float], ...] = ()
    skips: tuple[int, ...] = ()
    first_loss: float | None = None
    resumed_at: int = field(default=0, compare=False)
    validation_gain: tuple[float, float] | None = None
    losses: tuple[tuple[int, float], ...] = ()
    wall_seconds: float = field(default=0.0, compare=False)
    validation_loss: float | None = None
    loss_unit: str = ""
    metric: float | None = None
    origins: tuple[Origin, ...] = ()

    @property
    def diverged(self) -> bool:
        """Whether the run was lost; see `train.run.Run`."""
        return self.diverged_at is not None

    @property
    def divergence(self) -> str:
        """Say in which step the run diverged, and where the values that broke it came from."""
        first = first_harm(self.origins)
        if first is not None:
            return f"diverged in step {self.diverged_at}: {first.words}"
        if not self.overflows:
            return f"diverged in step {self.diverged_at}"
        layer, _ = max(self.overflows, key=lambda pair: pair[1])
        return f"diverged in step {self.diverged_at}, most overflows in {layer or NO_LAYER}"


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
    float32's own loss there) at CURVE_SHARES of the run, as far as both runs got. `losses` and
    `float32_losses` are `loss_points` of both runs, `wall_seconds` how long this one took.
    `validation_loss`, `loss_unit` and `metric`: those of the `Measurement`.
    """

    loss_gap: float
    validation_accuracy: float | None
    diverged: bool
    overflows: tuple[tuple[str, int], ...]
    underflows: tuple[tuple[str, int], ...]
    skipped_steps: int
    cost: PolicyCost
    fast: str = ""
    swamped: Swamped = NOT_COUNTED
    lost: tuple[LostValues, ...] = ()
    scales: tuple[tuple[int, float], ...] = ()
    skips: tuple[int, ...] = ()
    gap_curve: GapCurve = ()
    losses: tuple[tuple[int, float], ...] = ()
    float32_losses: tuple[tuple[int, float], ...] = ()
    wall_seconds: float = field(default=0.0, compare=False)
    validation_loss: float | None = None
    loss_unit: str = ""
    metric: float | None = None
    origins: tuple[Origin, ...] = ()


def loss_points(losses: NDArray[np.float64]) -> tuple[tuple[int, float], ...]:
    """Return (steps taken, mean loss in nats since the point before) at LOSS_POINTS of a run.

    Steps are spaced evenly by their logarithm, each once; six digits are kept. What is not finite
    is left out.
    """
    ends = sorted({round(end) for end in np.geomspace(1, max(1, len(losses)), LOSS_POINTS)})
    points, start = [], 0
    for end in ends:
        part = losses[start:end]
        if len(part) and np.isfinite(part).all():
            points.append((end, float(f"{math.fsum(part) / len(part):.6g}")))
        start = end
    return tuple(points)


def curve_of(
    losses: NDArray[np.float64], steps: int, tail_steps: int
) -> tuple[tuple[int, float], ...]:
    """Return (steps taken, mean loss up to there in nats) at CURVE_SHARES of a run of `steps`."""
    points = []
    for share in CURVE_SHARES:
        end, window = math.ceil(steps * share), max(1, round(tail_steps * share))
        part = losses[max(0, end - window) : end]
        if end <= len(losses) and np.isfinite(part).all():
            points.append((end, math.fsum(part) / len(part)))
    return tuple(points)


def gap_curve(measurement: Measurement, baseline: Measurement | None) -> GapCurve:
    """Return (steps taken, gap, float32's own loss there), in nats, where both runs got.

    A point where float32's loss is zero is left out: nothing can be told beside it.
    """
    float32 = dict(baseline.curve) if baseline else {}
    return tuple(
        (steps, loss - float32[steps], float32[steps])
        for steps, loss in measurement.curve
        if float32.get(steps)
    )


def share_of(gap: float, loss: float) -> float:
    """Return a gap as a share of float32's own `loss` there, of its size where that is negative."""
    return gap / abs(loss)


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
        losses=measurement.losses,
        float32_losses=baseline.losses if baseline else (),
        wall_seconds=measurement.wall_seconds,
        validation_loss=measurement.validation_loss,
        loss_unit=measurement.loss_unit,
        metric=measurement.metric,
        origins=measurement.origins,
    )


def measurement_of(run: Run, task: Task, policy: Policy) -> Measurement:
    """Return what a training of `task` under `policy` showed."""
    return Measurement(
        tail_loss=float(run.tail_loss) if np.isfinite(run.tail_loss) else None,
        validation_accuracy=run.validation_accuracy,
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
        resumed_at=run.resumed_at,
        validation_gain=run.validation_gain,
        losses=loss_points(run.losses),
        validation_loss=run.validation_loss,
        loss_unit=run.loss_unit,
        metric=run.metric,
        origins=run.origins,
    )
