"""Losses of classes from logarithms of probabilities: one loss a row, before a mean or a sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.loss import IGNORED

# Source: torch 2.13, `aten/src/ATen/native/LossNLL.cpp`.


def _counted_rows(targets: FloatArray, attrs: Attrs) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows that count, and the class of each."""
    classes = targets.astype(np.intp)
    counts = classes != attrs.get("ignore_index", IGNORED)
    return np.flatnonzero(counts), classes[counts]


def _row_weights(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    targets, *weights = inputs
    rows, classes = _counted_rows(targets, attrs)
    weight_of_row = np.zeros(len(targets), np.float32, like=targets)
    weight_of_row[rows] = weights[0][classes] if weights else np.float32(1.0)
    return weight_of_row


def _weights_example(rng: np.random.Generator) -> Example:
    targets = rng.integers(0, 5, 6).astype(np.float32)
    targets[2] = IGNORED
    return Example((targets, rng.uniform(0.5, 2.0, 5).astype(np.float32)))


row_weights = Op(
    "row_weights",
    lambda inputs, attrs: inputs[0],
    _row_weights,
    flops=lambda inputs, out, attrs: 0,
    example=_weights_example,
    pointwise=False,
)
"""The weight of each row's class, of targets [rows] and weights [classes]; 0 where ignored.

Without weights each is 1.
"""


def _nll(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    log_p, targets, *given = inputs
    weights = given[0] if given else np.ones(log_p.shape[1], np.float32, like=log_p)
    rows, classes = _counted_rows(targets, attrs)
    smoothing = np.float32(attrs.get("label_smoothing", 0.0))
    losses = np.zeros(len(targets), np.float32, like=targets)
    own = -log_p[rows, classes] * weights[classes]
    if smoothing:
        even = -np.add.reduce(log_p[rows] * weights, axis=1) / np.float32(log_p.shape[1])
        own = own * (np.float32(1.0) - smoothing) + even * smoothing
    losses[rows] = own
    return losses


def _nll_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, targets, *given = inputs
    weights = given[0] if given else np.ones(attrs["classes"], np.float32, like=targets)
    rows, classes = _counted_rows(targets, attrs)
    smoothing = np.float32(attrs.get("label_smoothing", 0.0))
    slope = np.zeros((len(targets), len(weights)), np.float32, like=targets)
    slope[rows] -= weights * (smoothing / np.float32(len(weights)))
    slope[rows, classes] -= weights[classes] * (np.float32(1.0) - smoothing)
    return slope * grad[:, None]


def _nll_example(rng: np.random.Generator) -> Example:
    targets, weights = _weights_example(rng).inputs
    log_p = rng.standard_normal((6, 5)).astype(np.float32)
    return Example((log_p, targets, weights), {"label_smoothing": 0.1})


def _emit_nll_grad(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "classes": b.shape(node.inputs[0])[1]}
    return b.emit(negative_log_likelihood_grad, grad, *node.inputs[1:], attrs=attrs)


negative_log_likelihood_grad = Op(
    "negative_log_likelihood_grad",
    lambda inputs, attrs: (inputs[0][0], attrs["classes"]),
    _nll_grad,
    placement="fp32",
    pinned=(1, 2),
    pointwise=False,
)
negative_log_likelihood = Op(
    "negative_log_likelihood",
    lambda inputs, attrs: inputs[1],
    _nll,
    gradients=(_emit_nll_grad, None, None),
    flops=lambda inputs, out, attrs: 2 * size(inputs[0]),
    example=_nll_example,
    placement="fp32",
    pinned=(1, 2),
    pointwise=False,
)
"""-weight log p of each row's class [rows], of log p [rows, classes], targets and class weights.

Without weights each is 1. Rows with target `ignore_index` are 0; `label_smoothing` spreads that
share over all classes.
"""
