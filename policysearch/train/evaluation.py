"""How good a trained model is on data it has not learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from policysearch.emulator.arena import Arena
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray
from policysearch.nn.model import Model
from policysearch.ops.loss import IGNORED
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast
from policysearch.train.feeding import Array, arrays_by_input, feed_constants, feed_masks
from policysearch.train.labels import class_axis, of_one_example
from policysearch.train.losses import loss_of
from policysearch.train.step import trace_forward


def accuracy(
    model: Model,
    policy: Policy,
    arrays: Mapping[str, FloatArray],
    examples: tuple[Sequence[Array], Array],
    batch_size: int,
    *,
    loss: str = "",
    seed: int,
    fast: Fast,
    arena: Arena | None = None,
) -> float | None:
    """Return the share of labels that the model gets right under `policy`, IGNORED ones left out.

    `arrays` are the trained parameters and running statistics by name, `examples` inputs and
    labels. The model runs as in evaluation, where an example does not depend on the others of its
    batch, with its values in `arena`. A row of logits that is not finite counts as wrong. None
    where labels are no classes of the outputs, by the task's `loss`, or all IGNORED.
    """
    inputs, labels = examples
    if labels.dtype != np.int64 or not (counted := int(np.count_nonzero(labels != IGNORED))):
        return None
    graph = apply_policy(trace_forward(model, batch_size), policy)
    outputs = of_one_example(graph.output("logits").shape, batch_size)
    if (axis := class_axis(outputs, labels.shape[1:], loss_of(model, loss))) is None:
        return None
    executable = compile_graph(graph, seed=seed, fast=fast, sources=arrays, arena=arena)
    feed_constants(executable, model)
    right = 0
    for start in range(0, len(labels), batch_size):
        part = slice(start, start + batch_size)
        wanted = labels[part]
        for name, array in arrays_by_input(model, inputs, labels):
            executable.arrays[name][: len(wanted)] = array[part]
        feed_masks(executable, seed, start)
        executable.forward_backward()
        # the last batch may be short: what is left in its rows from the one before is not read
        logits = executable.value("logits").reshape(batch_size, *outputs)[: len(wanted)]
        right += _hits(np.moveaxis(logits, axis, -1), wanted)
    return right / counted


def _hits(rows: FloatArray, labels: Array) -> int:
    """Return how many rows of logits are largest at their label."""
    # argmax would find a class in rows of NaN, and the labels of IGNORED never match one
    return int(((rows.argmax(axis=-1) == labels) & np.isfinite(rows).all(axis=-1)).sum())
