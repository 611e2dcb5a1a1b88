"""Paired runs: gradients of other policies along one training, at its parameters and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import FloatArray, Node
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.train.feeding import (
    KEPT,
    Array,
    as_stored,
    batch_order,
    feed_constants,
    feed_inputs,
    feed_masks,
    feed_scalars,
    initial_parameters,
    micro_batches,
)
from policysearch.train.loss_scale import initial_state
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer

Gradients = Mapping[str, NDArray[np.float64]]
Observer = Callable[[Node, FloatArray, FloatArray], None]
"""Told of every rounding: the node, and what was before and after."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A step of a training before it is taken: the parameters as they are kept, and a batch.

    That is the first micro-batch of the step.
    """

    step: int
    params: Mapping[str, FloatArray]
    inputs: Sequence[Array]
    labels: Array


class PairedRun:
    """A step under `policy`, with its first loss scale, at moments of other trainings with `seed`.

    `observer` is told of its roundings. `step` is that step, where it is compiled already.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        policy: Policy,
        seed: int,
        observer: Observer | None = None,
        *,
        step: Step | None = None,
    ) -> None:
        graph = task.tracing(model, task.batch_size).step_graph(policy)
        self._names = [name for name, _ in graph.outputs if name.startswith("grad:")]
        wanted = graph.wanting("loss", *self._names)
        self._step = step or compile_graph(wanted, seed=seed, observer=observer)
        self._model, self._seed, self._micro_batches = model, seed, task.accumulation_steps
        feed_constants(self._step, model)
        scale = initial_state(policy.loss_scale).scale
        feed_scalars(self._step, scale, momentum=task.momentum_at(0))

    def at(self, moment: Moment) -> tuple[float, Gradients]:
        """Return the loss and the unscaled gradients, "grad:" before the parameter's name."""
        step = self._step
        feed_inputs(step, self._model, moment.inputs, moment.labels)
        feed_masks(step, self._seed, moment.step * self._micro_batches)
        self._feed_parameters(moment)
        step.step_index = moment.step * self._micro_batches
        step.forward_backward()
        gradients = {name: step.value(name).astype(np.float64) for name in self._names}
        return float(step.value("loss")), gradients

    def _feed_parameters(self, moment: Moment) -> None:
        """Write the parameters, rounded to where the step keeps them."""
        for node in self._step.graph.nodes:
            if node.op.name in KEPT and node.name in moment.params:
                self._step.arrays[node.name][...] = as_stored(node, moment.params[node.name])


def along(trainer: Trainer, data: Dataset) -> Iterator[Moment]:
    """Train from the initial values of the trainer's seed; yield every step before it is taken."""
    trainer.load(initial_parameters(trainer.model, trainer.seed))
    for index, examples in enumerate(batch_order(trainer.task, data, trainer.seed)):
        inputs, labels = [x[examples] for x in data.train[0]], data.train[1][examples]
        first = next(micro_batches(inputs, labels, trainer.task.accumulation_steps))
        yield Moment(index, trainer.params(), *first)
        trainer.step(inputs, labels)


def moments(trainer: Trainer, data: Dataset, steps: Collection[int]) -> list[Moment]:
    """Return these steps of a training, as `along` meets them; what it does not reach is left out.

    A step that is looked at need not be taken itself.
    """
    run = islice(along(trainer, data), max(steps, default=-1) + 1)
    return [moment for moment in run if moment.step in steps]


def norm(gradients: Gradients) -> float:
    """Return the Euclidean norm over all parameters."""
    return math.sqrt(math.fsum(float(np.sum(part**2)) for part in gradients.values()))


def ratio(size: Gradients, low: Gradients, exact: Gradients) -> float:
    """Return the norm of `size` over that of what `low` and `exact` differ by."""
    # |g| / |g_low - g|: how far the gradient stands out of what low precision adds to it
    noise = norm({name: low[name] - exact[name] for name in low})
    return norm(size) / noise if noise else math.inf
