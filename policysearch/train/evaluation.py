"""How good a trained model is on data it has not learned from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.emulator.compile import Step
from policysearch.graph import Graph
from policysearch.nn.model import OWN_LOSS, Model
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.chance import ByChance, by_chance
from policysearch.train.constant import (
    Judged,
    any_counts,
    below_constant,
    joined,
    judged,
)
from policysearch.train.feeding import Array, arrays_by_input, feed_constants, feed_masks
from policysearch.train.labels import class_axis, labels_of, of_one_example
from policysearch.train.losses import loss_of, unit_of
from policysearch.train.step import trace_forward


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model makes of examples that it has not learned from.

    `accuracy` is the share of labels got right, IGNORED ones left out; None where labels are no
    classes of the outputs, by the task's `loss`, or all IGNORED. `losses` are those of each label
    that counts, float64; None where there is no function of that loss in `train.constant`. A row of
    outputs that is not finite counts as wrong. `own_losses` are those of each whole batch, where
    the model returns its own. `metric` is that of the task, None where it has none or it is not
    finite. `chance` is what its own loss comes to by chance; None where accuracy tells whether the
    model has learned, where labels do not enter the loss, or it is not in float32.
    """

    accuracy: float | None
    losses: NDArray[np.float64] | None
    loss: str = ""
    own_losses: tuple[float, ...] = ()
    metric: float | None = None
    chance: ByChance | None = None

    @property
    def mean_loss(self) -> float | None:
        """The mean loss, as in training; None where it is not known or not finite."""
        known = self.losses if self.loss != OWN_LOSS else np.array(self.own_losses)
        if known is None or not known.size:
            return None
        mean = float(np.mean(known))
        return mean if math.isfinite(mean) else None

    @property
    def unit(self) -> str:
        """What the loss is counted in."""
        return unit_of(self.loss)

    def below_constant(self, dataset: Dataset) -> tuple[float, float] | None:
        """Return by how much the loss on the validation part is below the constant's.

        The mean over its labels and its standard error, or that beside `chance`; None where it is
        not known.
        """
        if self.chance is not None:
            return self.chance.gain
        return below_constant(dataset, self.loss, self.losses)


def evaluation(
    model: Model,
    policy: Policy,
    examples: tuple[Sequence[Array], Array],
    batch_size: int,
    compiled: Callable[[Graph], Step],
    *,
    seed: int,
    loss: str = "",
    metric: Callable[[Array, Array], float | None] | None = None,
) -> Evaluation:
    """Return what the model makes of `examples`, inputs and labels, under `policy`.

    `compiled` makes a step of a graph, with the trained parameters and running statistics.
    """
    named = loss_of(model, loss)
    batch_size = min(batch_size, len(examples[1])) if named == OWN_LOSS else batch_size
    graph = apply_policy(trace_forward(model, batch_size, named == OWN_LOSS), policy)
    shape = graph.output("logits").shape
    labels = labels_of(outputs := of_one_example(shape, batch_size), examples[1])
    in_rows = bool(shape) and shape[0] % batch_size == 0
    axis = _axis(outputs, labels, named) if in_rows else None
    own = "loss" in dict(graph.outputs)
    if axis is None and not (own or metric):
        return Evaluation(None, None, named)
    step, parts, every, own_losses = compiled(graph), list[Judged](), list[Array](), list[float]()
    for wanted, values in _run(step, model, examples, batch_size, seed):
        own_losses += [float(step.value("loss"))] if own and len(wanted) == batch_size else []
        logits = values.reshape(batch_size, *outputs)[: len(wanted)] if in_rows else values
        every += [logits.copy()] if metric else []
        if axis is not None:
            logits = np.moveaxis(logits, axis, -1) if outputs else logits
            parts.append(judged(logits, labels_of(outputs, wanted), named))
    found = metric(np.concatenate(every), labels) if metric else None
    judgement = (None, None) if axis is None else joined(parts, labels)
    chance = None
    if own and judgement[0] is None:
        loss_of_labels = partial(_mean_loss, step, model, examples[0], batch_size, seed)
        chance = by_chance(graph, model, examples[1], loss_of_labels, compiled, seed)
    return Evaluation(*judgement, named, tuple(own_losses), found, chance)


def _mean_loss(
    step: Step, model: Model, inputs: Sequence[Array], batch_size: int, seed: int, labels: Array
) -> float:
    """Return the mean of the model's own loss over whole batches."""
    run = _run(step, model, (inputs, labels), batch_size, seed)
    losses = [float(step.value("loss")) for wanted, _ in run if len(wanted) == batch_size]
    return math.fsum(losses) / len(losses)


def _axis(outputs: tuple[int, ...], labels: Array, loss: str) -> int | None:
    """Return the axis of classes or numbers in a batch of outputs; None where no label counts."""
    axis = class_axis(outputs, labels.shape[1:], loss) if labels.dtype == np.int64 else -1
    return axis if any_counts(labels) else None


def _run(
    executable: Step,
    model: Model,
    examples: tuple[Sequence[Array], Array],
    batch_size: int,
    seed: int,
) -> Iterator[tuple[Array, Array]]:
    """Yield the labels of each batch, and its outputs: a loss where that is all the model gives.

    The last batch may be short: what is left in its rows from the one before is not to be read.
    """
    inputs, labels = examples
    feed_constants(executable, model)
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        wanted = labels[part]
        for name, array in arrays_by_input(model, inputs, labels):
            executable.arrays[name][: len(wanted)] = array[part]
        feed_masks(executable, seed, start)
        executable.forward_backward()
        yield wanted, np.asarray(executable.value("logits"))
