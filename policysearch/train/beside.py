"""Gradients of other policies along one training: at its parameters, on its batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset, batches
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray, Node
from policysearch.policy.policy import Policy
from policysearch.train.feeding import Array, feed_inputs
from policysearch.train.loss_scale import inverse
from policysearch.train.tracing import Tracing
from policysearch.train.trainer import Trainer, initial_parameters

Gradients = Mapping[str, NDArray[np.float64]]
Observer = Callable[[Node, FloatArray, FloatArray], None]
"""Told of every rounding: the node, and what was before and after."""


class Beside:
    """A step of another policy, at the parameters and on the batches of a trainer.

    `observer` is told of its roundings.
    """

    def __init__(self, trainer: Trainer, policy: Policy, observer: Observer | None = None) -> None:
        self._trainer = trainer
        task = trainer.task
        graph = Tracing(task, trainer.model, task.batch_size).step_graph(policy)
        self._names = [name for name, _ in graph.outputs if name.startswith("grad:")]
        wanted = graph.wanting("loss", *self._names)
        self._step = compile_graph(wanted, seed=trainer.seed, observer=observer)

    def gradients(self, inputs: Sequence[Array], labels: Array) -> Gradients:
        """Return the unscaled gradients by parameter."""
        trainer, arrays = self._trainer, self._step.arrays
        feed_inputs(self._step, trainer.model, inputs, labels)
        scale = trainer.scale_state.scale
        fed: dict[str, FloatArray | float] = {**trainer.params()}
        fed |= {"loss_scale": scale, "inverse_scale": inverse(scale)}
        for name in fed.keys() & arrays.keys():
            arrays[name][...] = fed[name]
        self._step.step_index = trainer.step_index
        self._step.forward_backward()
        return {name: self._step.value(name).astype(np.float64) for name in self._names}


def along(trainer: Trainer, data: Dataset) -> Iterator[tuple[int, Sequence[Array], Array]]:
    """Train from the initial values of the trainer's seed; yield what every step reads.

    That is (step, inputs, labels), before the step is taken.
    """
    trainer.load(initial_parameters(trainer.model, trainer.seed))
    task, rng = trainer.task, np.random.default_rng([trainer.seed, 1])
    for index, chosen in enumerate(batches(data, task.batch_size, task.steps, rng)):
        inputs, labels = [x[chosen] for x in data.train[0]], data.train[1][chosen]
        yield index, inputs, labels
        trainer.step(inputs, labels)


def norm(gradients: Gradients) -> float:
    """Return the Euclidean norm over all parameters."""
    return math.sqrt(math.fsum(float(np.sum(part**2)) for part in gradients.values()))


def ratio(size: Gradients, low: Gradients, exact: Gradients) -> float:
    """Return the norm of `size` over that of what `low` and `exact` differ by."""
    noise = norm({name: low[name] - exact[name] for name in low})
    return norm(size) / noise if noise else math.inf
