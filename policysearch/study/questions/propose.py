"""What the float32 run proposes to decide: a loss-scale schedule, and where a phase may begin."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from policysearch.formats import format_named
from policysearch.graph import FloatArray, Node
from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.scaling import Scaling
from policysearch.train.divergence import has_diverged
from policysearch.train.paired_run import PairedRun, along, ratio
from policysearch.train.trainer import PROBE_INTERVAL, Trainer
from policysearch.values import InputError

WINDOWS = 30
"""A schedule may move so many times in a run."""

MARGIN = 0.5
"""Binades below overflow for what other seeds and a low format do to gradients.

None where a format has no infinity and no NaN: there overflow only saturates.
"""

LIMIT = math.sqrt(3.0)
"""Norm of the gradient over that of its rounding noise below which training is said to become less
effective (Chmiel et al., arXiv 2505.19115); how far that holds here: docs/lab/early-signs.md."""

OBSERVED = "bfloat16"
"""Gradients are seen where they are cast to it: it has float32's range."""

LATE = 4
"""A ratio is the root mean square of so many probes."""


@dataclass(frozen=True)
class Ratio:
    """By step, the norm of the gradient over that of its rounding noise in one format."""

    format: str
    steps: tuple[int, ...]
    ratios: tuple[float, ...]

    @property
    def means(self) -> tuple[float, ...]:
        """The root mean square of each ratio and those of the probes before it, LATE in all."""
        squares = np.array(self.ratios) ** 2
        parts = (squares[max(0, i - LATE + 1) : i + 1] for i in range(len(squares)))
        return tuple(math.sqrt(part.mean()) for part in parts)

    @property
    def sinks_at(self) -> int | None:
        """The first probed step from which on the ratio stays below LIMIT; None where none is."""
        first = None
        for step, mean in zip(self.steps, self.means, strict=True):
            first = None if mean >= LIMIT else step if first is None else first
        return first


def largest_gradients(objective: Objective, seed: int = 0) -> NDArray[np.float64]:
    """Return the largest absolute gradient that a product reads in each step of the float32 run.

    InputError where that run diverges.
    """
    largest: list[float] = []
    losses: list[float] = []

    def see(node: Node, before: FloatArray, after: FloatArray) -> None:
        if node.op.name == "cast" and node.role in ("dgrad", "wgrad"):
            largest[-1] = max(largest[-1], float(np.abs(before).max()))

    trainer = _trainer(objective, seed)
    read = _read_in(objective.float32, OBSERVED)
    beside = PairedRun(objective.task, objective.model, read, seed, see)
    with threadpool_limits(1):
        for moment in along(trainer, objective.dataset):
            largest.append(0.0)
            losses.append(beside.at(moment)[0])
            if has_diverged(losses, [False] * len(losses)):
                cause = (
                    f"learning_rate: {objective.task.learning_rate:g}, with which float32 itself"
                )
                raise InputError(
                    f"{cause} diverged in step {moment.step} (seed {seed}); expected a lower one"
                )
    return np.array(largest)


def schedule_for(largest: NDArray[np.float64], format: str) -> str:
    """Return a schedule in the form of `scale_schedules`, for gradients read in `format`.

    In each of WINDOWS windows it is the largest power of two under which no gradient seen there,
    or half a window before or after, comes nearer to overflow than MARGIN.
    """
    row = format_named(format)
    margin = 0.0 if row.specials == "none" else MARGIN
    steps, top = len(largest), math.log2(row.max) - margin
    width = max(1, math.ceil(steps / WINDOWS))
    said: list[str] = []
    last = None
    for start in range(0, steps, width):
        near = largest[max(0, start - width // 2) : start + width + width // 2].max()
        power = math.floor(top - math.log2(near)) if near else last or 0
        power = min(max(power, -24), 30)
        if power != last:
            said.append(f"{start / steps:.4g}:{power}")
            last = power
    return " ".join(said)


def noise_ratio(objective: Objective, format: str, seed: int = 0, loss_scale: float = 1.0) -> Ratio:
    """Return how far gradients in `format` stand above their rounding, along the float32 run.

    Noise of the backward pass: the same forward pass in float32, gradients under `loss_scale` or,
    in formats below 16 bits, scaled to their own largest.
    """
    trainer = _trainer(objective, seed)
    exact, read = objective.float32, _read_in(objective.float32, format)
    current = replace(read, scaling=Scaling("current"))
    task, net = objective.task, objective.model
    scaled = replace(read, loss_scale=LossScale("fixed", loss_scale))
    low = scaled if _is_wide(format) else current
    beside = [PairedRun(task, net, policy, seed) for policy in (exact, low)]
    steps, ratios = [], []
    with threadpool_limits(1):
        for moment in along(trainer, objective.dataset):
            if moment.step % PROBE_INTERVAL == 0:
                (_, plain), (_, rounded) = (each.at(moment) for each in beside)
                steps.append(moment.step)
                ratios.append(ratio(plain, rounded, plain))
    return Ratio(format, tuple(steps), tuple(ratios))


def _trainer(objective: Objective, seed: int) -> Trainer:
    return Trainer(objective.model, objective.task, objective.float32, seed, objective.fast)


def _read_in(policy: Policy, format: str) -> Policy:
    """Return float32 whose products read gradients in a format."""
    layers = tuple((name, replace(layer, grad=format)) for name, layer in policy.layers)
    return replace(policy, layers=layers)


def _is_wide(format: str) -> bool:
    return format_named(format).bits >= 16
