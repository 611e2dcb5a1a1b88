"""Softmax over the last axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, size
from policysearch.layout import last_axis_first, last_axis_last
from policysearch.ops.summation import lane_sum


def _softmax(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x = last_axis_first(inputs[0])
    y = np.exp(x - np.maximum.reduce(x, axis=0))
    y /= lane_sum(y)
    if attrs.get("empty_rows"):
        y[:, np.isneginf(x).all(axis=0)] = 0.0
    return last_axis_last(y)


def _softmax_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """y * (grad - sum(grad * y)), the sum over the last axis."""
    grad, y = (last_axis_first(array) for array in inputs)
    return last_axis_last((grad - lane_sum(grad * y)) * y)


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
    gradients=(lambda b, node, grad: b.emit(softmax_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 12 * size(out),
    example=lambda rng: Example((rng.standard_normal((2, 3, 5)).astype(np.float32),)),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
)
"""exp(x) / sum(exp(x)) over the last axis, shifted by the maximum so that nothing overflows.

A row that is -inf throughout gives NaN, as in torch; with `empty_rows` 0, as in its
scaled_dot_product_attention (`_safe_softmax` in `aten/src/ATen/native/transformers/attention.cpp`).
"""
