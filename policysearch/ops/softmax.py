"""Softmax and its logarithm, over the last axis or another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.layout import in_c_order, last_axis_first, last_axis_last
from policysearch.ops.summation import lane_sum


def _rows(x: FloatArray, attrs: Attrs) -> FloatArray:
    """Return x with the axis it is normalised over first, in C order."""
    axis = attrs.get("axis")
    return last_axis_first(x) if axis is None else in_c_order(np.moveaxis(x, axis, 0))


def _back(rows: FloatArray, attrs: Attrs) -> FloatArray:
    axis = attrs.get("axis")
    return last_axis_last(rows) if axis is None else np.moveaxis(rows, 0, axis)


def _softmax(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x = _rows(inputs[0], attrs)
    y = np.exp(x - np.maximum.reduce(x, axis=0))
    y /= lane_sum(y)
    if attrs.get("empty_rows"):
        y[:, np.isneginf(x).all(axis=0)] = 0.0
    return _back(y, attrs)


def _softmax_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """y * (grad - sum(grad * y)), the sum over the axis."""
    grad, y = (_rows(array, attrs) for array in inputs)
    return _back((grad - lane_sum(grad * y)) * y, attrs)


def _log_softmax(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x = _rows(inputs[0], attrs)
    shifted = x - np.maximum.reduce(x, axis=0)
    logarithm: FloatArray = np.log(lane_sum(np.exp(shifted)))
    return _back(shifted - logarithm, attrs)


def _log_softmax_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """grad - exp(y) * sum(grad), the sum over the axis."""
    grad, y = (_rows(array, attrs) for array in inputs)
    weights: FloatArray = np.exp(y)
    return _back(grad - weights * lane_sum(grad), attrs)


def _axis_of(node: Node) -> Attrs:
    axis = node.attributes.get("axis")
    return {} if axis is None else {"axis": axis}


softmax_grad = Op(
    "softmax_grad",
    shape=lambda inputs, attrs: inputs[0],
    forward=_softmax_grad,
    flops=lambda inputs, out, attrs: 4 * size(out),
    kind="reduce",
    placement="fp32",
)
softmax = Op(
    "softmax",
    shape=lambda inputs, attrs: inputs[0],
    forward=_softmax,
    gradients=(lambda b, n, grad: b.emit(softmax_grad, grad, n.id, attrs=_axis_of(n)),),
    flops=lambda inputs, out, attrs: 12 * size(out),
    example=lambda rng: Example((rng.standard_normal((2, 3, 5)).astype(np.float32),)),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
)
"""exp(x) / sum(exp(x)) over `axis`, the last if not given, shifted so that nothing overflows.

A row that is -inf throughout gives NaN, as in torch; with `empty_rows` 0, as in its
scaled_dot_product_attention (`_safe_softmax` in `aten/src/ATen/native/transformers/attention.cpp`).
"""

log_softmax_grad = Op(
    "log_softmax_grad",
    shape=lambda inputs, attrs: inputs[0],
    forward=_log_softmax_grad,
    flops=lambda inputs, out, attrs: 13 * size(out),
    kind="reduce",
    placement="fp32",
)
log_softmax = Op(
    "log_softmax",
    shape=lambda inputs, attrs: inputs[0],
    forward=_log_softmax,
    gradients=(lambda b, n, grad: b.emit(log_softmax_grad, grad, n.id, attrs=_axis_of(n)),),
    flops=lambda inputs, out, attrs: 13 * size(out),
    example=lambda rng: Example((rng.standard_normal((2, 3, 5)).astype(np.float32),), {"axis": 1}),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
)
"""The logarithm of softmax, over `axis`, the last if not given."""
