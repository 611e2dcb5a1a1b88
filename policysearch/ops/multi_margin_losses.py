"""Losses of the margins between the scores of a row's classes and of the others: one loss a row.

Source: torch 2.13, `aten/src/ATen/native/LossMultiMargin.cpp` and `LossMultiLabelMargin.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder


def _pairs(inputs: Sequence[FloatArray], attrs: Attrs) -> tuple[FloatArray, FloatArray]:
    """Return by how much each class falls short of leading each other, [rows, own, other].

    And how much each pair counts: not at all where the first is none of the row's own classes or
    the second is one.
    """
    scores, targets, *weights = inputs
    rows, classes = np.arange(len(scores), like=scores), targets.astype(np.intp)
    own = np.zeros(scores.shape, np.float32, like=scores)
    if targets.ndim == 1:
        own[rows, classes] = 1.0
    else:  # up to the first below 0; what is listed twice counts twice
        row, place = np.nonzero(np.logical_and.accumulate(classes >= 0, axis=1))
        np.add.at(own, (row, classes[row, place]), np.float32(1.0))
    counts = own[:, :, None] * (own == 0)[:, None, :] / np.float32(scores.shape[1])
    if weights:
        counts *= weights[0][classes][:, None, None]
    margin = np.float32(attrs.get("margin", 1.0))
    short = margin - scores[:, :, None] + scores[:, None, :]
    return np.maximum(short, np.float32(0.0)), counts


def _multi_margin(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    short, counts = _pairs(inputs, attrs)
    powers = short * short if attrs.get("power") == 2 else short
    losses: FloatArray = np.add.reduce(powers * counts, axis=(1, 2))
    return losses


def _multi_margin_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, *others = inputs
    short, counts = _pairs(others, attrs)
    squared = attrs.get("power") == 2
    slope = np.float32(2.0) * short if squared else (short > 0).astype(np.float32)
    slope *= counts * grad[:, None, None]
    pushed: FloatArray = np.add.reduce(slope, axis=1) - np.add.reduce(slope, axis=2)
    return pushed


def _rows(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0][:1]


def _flops(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    """Return about how many operations the pairs of classes of all rows take."""
    return 4 * size(inputs[0]) * inputs[0][1]


def _emit_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(multi_margin_grad, grad, *node.inputs, attrs=node.attributes)


def _example(rng: np.random.Generator) -> Example:
    """Scores that are apart by neither 0 nor the margin."""
    scores = rng.permuted(np.tile(np.array([-0.8, -0.1, 0.5, 1.4], np.float32), (5, 1)), axis=1)
    weights = rng.uniform(0.5, 2.0, 4).astype(np.float32)
    return Example((scores, np.array([0, 3, 1, 1, 2], np.float32), weights), {"power": 2})


multi_margin_grad = Op(
    "multi_margin_grad",
    lambda inputs, attrs: inputs[1],
    _multi_margin_grad,
    flops=lambda inputs, out, attrs: 5 * size(out) * out[1],
    kind="reduce",
    placement="fp32",
    pinned=(2, 3),
)
multi_margin = Op(
    "multi_margin",
    _rows,
    _multi_margin,
    gradients=(_emit_grad, None, None),
    flops=_flops,
    example=_example,
    kind="reduce",
    placement="fp32",
    pinned=(1, 2),
)
"""By how much a row's class fails to lead each other by `margin`, of scores [rows, classes].

The mean over the classes, of squares where `power` is 2, weighted by the own class. Targets are
[rows], one class each, or [rows, classes]: several, up to the first number below 0.
"""
