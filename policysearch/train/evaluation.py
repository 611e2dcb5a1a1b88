"""How good a trained model is on data it has not learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.emulator.arena import Arena
from policysearch.emulator.compile import compile_graph
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast
from policysearch.train.constant import any_counts, below_constant, joined, judged
from policysearch.train.feeding import Array, arrays_by_input, feed_constants, feed_masks
from policysearch.train.labels import class_axis, of_one_example
from policysearch.train.losses import loss_of
from policysearch.train.step import trace_forward


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model makes of examples that it has not learned from.

    `accuracy` is the share of labels got right, IGNORED ones left out; None where labels are no
    classes of the outputs, by the task's `loss`, or all IGNORED. `losses` are those of each label
    that counts, float64; None where there is no function of that loss in `train.constant`.
    """

    accuracy: float | None
    losses: NDArray[np.float64] | None
    loss: str = ""

    def below_constant(self, dataset: Dataset) -> tuple[float, float] | None:
        """Return by how much the loss on the validation part is below the constant's.

        The mean over its labels and its standard error; None where that is not known.
        """
        return below_constant(dataset, self.loss, self.losses)


def evaluation(
    model: Model,
    policy: Policy,
    arrays: Mapping[str, Array],
    examples: tuple[Sequence[Array], Array],
    batch_size: int,
    *,
    loss: str = "",
    seed: int,
    fast: Fast,
    arena: Arena | None = None,
) -> Evaluation:
    """Return what the model makes of `examples`, inputs and labels, under `policy`.

    `arrays` are the trained parameters and running statistics by name. The model runs as in
    evaluation, where an example does not depend on the others of its batch, with its values in
    `arena`. A row of logits that is not finite counts as wrong.
    """
    inputs, labels = examples
    named = loss_of(model, loss)
    graph = apply_policy(trace_forward(model, batch_size), policy)
    shape = graph.output("logits").shape
    outputs = of_one_example(shape, batch_size)
    axis = class_axis(outputs, labels.shape[1:], named) if labels.dtype == np.int64 else -1
    if not shape or axis is None or not any_counts(labels):  # none: a loss of the model's own
        return Evaluation(None, None)
    executable = compile_graph(graph, seed=seed, fast=fast, sources=arrays, arena=arena)
    feed_constants(executable, model)
    parts = []
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        wanted = labels[part]
        for name, array in arrays_by_input(model, inputs, labels):
            executable.arrays[name][: len(wanted)] = array[part]
        feed_masks(executable, seed, start)
        executable.forward_backward()
        # the last batch may be short: what is left in its rows from the one before is not read
        logits = executable.value("logits").reshape(batch_size, *outputs)[: len(wanted)]
        parts.append(judged(np.moveaxis(logits, axis, -1) if outputs else logits, wanted, named))
    return Evaluation(*joined(parts, labels), named)
