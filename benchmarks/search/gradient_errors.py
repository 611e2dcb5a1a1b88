"""What a policy does to gradients, seen at a few steps of float32's own training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from policysearch.data.datasets import Dataset
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.train import paired_run
from policysearch.train.paired_run import Gradients, Moment, PairedRun
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer


def moments(
    task: Task, seed: int, steps: Sequence[int], *, dataset: Dataset, model: Model
) -> list[Moment]:
    """Return these steps of float32's training with `seed`, as they are met."""
    trainer = Trainer(model, task, preset("float32", model.layer_names), seed)
    with threadpool_limits(1):
        return paired_run.moments(trainer, dataset, steps)


def seen_under(
    task: Task, policy: Policy, seed: int, met: Sequence[Moment], model: Model
) -> list[tuple[float, Gradients]]:
    """Return at each moment the loss and the unscaled gradients as computed under `policy`."""
    beside = PairedRun(task, model, policy, seed)
    with threadpool_limits(1):
        return [beside.at(moment) for moment in met]


def gradient_errors(
    task: Task,
    policies: Sequence[Policy],
    seed: int,
    steps: Sequence[int],
    *,
    dataset: Dataset,
    model: Model,
) -> NDArray[np.float64]:
    """Return per policy the energy of its gradient error over that of the gradient: [policies].

    Float32 is trained with `seed` up to the last of `steps`. At each of them a forward and a
    backward pass under every policy, at float32's parameters on its batch, gives the squared norm
    over all parameters of (its gradient minus float32's), over float32's own; the mean over the
    steps is returned, infinite where a gradient is not finite.
    """
    met = moments(task, seed, steps, dataset=dataset, model=model)
    exact = seen_under(task, preset("float32", model.layer_names), seed, met, model)
    found = []
    for policy in policies:
        low = seen_under(task, policy, seed, met, model)
        pairs = zip(low, exact, strict=True)
        shares = [_energy(a, b) / _energy(b, {}) for (_, a), (_, b) in pairs]
        found.append(math.fsum(shares) / len(shares) if np.isfinite(shares).all() else math.inf)
    return np.array(found)


def _energy(left: Gradients, right: Gradients) -> float:
    """Return the squared norm of the difference; what `right` lacks is zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [float(np.sum((part - right.get(name, 0.0)) ** 2)) for name, part in left.items()]
    return math.fsum(parts) if np.isfinite(parts).all() else math.inf
