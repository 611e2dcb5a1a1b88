"""What one training gave, whole or stopped before its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import FloatArray
from policysearch.rounding.rounder import Fast
from policysearch.train.divergence import tail_mean
from policysearch.train.lost_values import LostValues
from policysearch.train.origin import Origin
from policysearch.train.swamped import Swamped


@dataclass(frozen=True, eq=False)
class Run:
    """What one training gave.

    `losses` (float64, unscaled, before the update of their step), `scales` and `skipped` hold
    one entry per step taken: fewer than the task's where the run diverged, at step
    `diverged_at`. A run diverges where `has_diverged` says so, when the loss-scale rule gives up,
    or when it ends on `tail_steps` losses none of which is finite. `tail_loss` is the mean of the
    finite ones of those losses, infinite where the run diverged. `validation_accuracy` is None
    where there are no classes to get right. `overflows` and `underflows` count, per layer, values
    that rounding made infinite (or saturated) or zero, in the steps 0, PROBE_INTERVAL,
    2 PROBE_INTERVAL and so on, and in the first and some later of those whose gradients were found
    not finite. `swamped` counts updates that vanish, in the former; `lost` has all that was lost by
    role and op.
    `origins` says where the first values that were not finite came from. `fast` is what
    ran; it changes no bit. A run that was stopped before its end has the same share of its tail as
    of its steps. `resumed_at` is how many of the steps a checkpoint had, where it went on from one.
    `validation_gain`: by how much the loss of a validation label is below that of the best constant
    predictor, mean and standard error over the labels (of a loss of the net's own: below what
    it comes to by chance), None where not known or not finite.
    `validation_loss` is the mean loss on the validation part, counted in `loss_unit`, as training
    losses are; `metric` is that of the task. Either is None where there is none, or not finite.
    """

    losses: NDArray[np.float64]
    scales: NDArray[np.float64]
    skipped: NDArray[np.bool_]
    tail_loss: float
    validation_accuracy: float | None
    diverged: bool
    diverged_at: int | None
    overflows: tuple[tuple[str, int], ...]
    underflows: tuple[tuple[str, int], ...]
    swamped: Swamped
    lost: tuple[LostValues, ...]
    params: dict[str, FloatArray]
    fast: Fast
    resumed_at: int = 0
    origins: tuple[Origin, ...] = ()
    validation_gain: tuple[float, float] | None = None
    validation_loss: float | None = None
    loss_unit: str = ""
    metric: float | None = None


def tail_of(losses: Sequence[float], tail_steps: int, share: float) -> float:
    """Return the mean of the finite losses of the tail of a run over `share` of its steps.

    That tail is the same share of `tail_steps` (its last step at least); infinity where none of
    its losses is finite.
    """
    return tail_mean(losses[-max(1, round(tail_steps * share)) :])
