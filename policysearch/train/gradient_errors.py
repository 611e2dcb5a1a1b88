"""What a policy does to gradients, seen at a few steps of float32's own training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from policysearch.data.datasets import Dataset, batches
from policysearch.emulator.compile import Step, compile_graph
from policysearch.formats import format_named
from policysearch.graph import FloatArray
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import quantise
from policysearch.train.feeding import Array, feed_constants, feed_inputs, feed_masks
from policysearch.train.loss_scale import initial_state, inverse
from policysearch.train.tasks import Task
from policysearch.train.tracing import Tracing
from policysearch.train.trainer import KEPT, Trainer, initial_parameters

Gradients = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Moment:
    """A step of a training before it is taken: parameters as float32 has them, and the batch."""

    step: int
    params: Mapping[str, FloatArray]
    inputs: Sequence[Array]
    labels: Array


def moments(
    task: Task, seed: int, steps: Sequence[int], *, dataset: Dataset, model: Model
) -> list[Moment]:
    """Return these steps of float32's training with `seed`, as they are met."""
    trainer = Trainer(model, task, preset("float32", model.layer_names), seed)
    trainer.load(initial_parameters(model, seed))
    drawn = batches(dataset, task.batch_size, task.steps, np.random.default_rng([seed, 1]))
    inputs, labels = dataset.train
    found = []
    with threadpool_limits(1):
        for step, indices in enumerate(drawn[: max(steps, default=-1) + 1]):
            batch = [array[indices] for array in inputs], labels[indices]
            if step in steps:
                found.append(Moment(step, trainer.params(), *batch))
            trainer.step(*batch)
    return found


def seen_under(
    task: Task, policy: Policy, seed: int, met: Sequence[Moment], model: Model
) -> list[tuple[float, Gradients]]:
    """Return at each moment the loss and the unscaled gradients as computed under `policy`."""
    graph = Tracing(task, model, task.batch_size).step_graph(policy)
    names = [name for name, _ in graph.outputs if name.startswith("grad:")]
    scale = initial_state(policy.loss_scale).scale
    found: list[tuple[float, Gradients]] = []
    with threadpool_limits(1):
        step = compile_graph(graph.wanting("loss", *names), seed=seed)
        feed_constants(step, model)
        for moment in met:
            feed_inputs(step, model, moment.inputs, moment.labels)
            feed_masks(step, seed, moment.step)
            _feed_parameters(step, moment)
            for name, value in (("loss_scale", scale), ("inverse_scale", inverse(scale))):
                step.arrays[name][...] = value
            step.step_index = moment.step
            step.forward_backward()
            made = {name: step.value(name).astype(np.float64) for name in names}
            found.append((float(step.value("loss")), made))
    return found


def _feed_parameters(step: Step, moment: Moment) -> None:
    """Write the parameters, rounded to where the step keeps them."""
    for node in step.graph.nodes:
        if node.op.name in KEPT and node.name in moment.params:
            kept = quantise(moment.params[node.name], format_named(node.format))
            step.arrays[node.name][...] = kept


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
