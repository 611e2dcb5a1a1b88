"""Layer normalisation over the last axis (arXiv 1607.06450).

The statistics of the rows are an op of their own, so that the gradients read those of the forward
pass, and they are float32 whatever format x has. Inside, the last axis comes first: sums over the
first axis of an array go along the rows of memory, one row of numbers after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.layout import last_axis_first, last_axis_last
from policysearch.ops import shape as shape_ops
from policysearch.ops.builder import Builder
from policysearch.ops.dense import bias_grad
from policysearch.ops.summation import lane_mean, lane_sum

EPSILON = 1e-5
"""What torch adds to the variance unless told otherwise."""


def over_rows(weight: FloatArray, x: FloatArray) -> FloatArray:
    """Return the weight [features] as it broadcasts over x [features, ...]."""
    return weight.reshape(-1, *(1,) * (x.ndim - 1))


def _normal(x: FloatArray, statistics: FloatArray) -> FloatArray:
    """Return (x - mean) / deviation, [features, ...]."""
    mean, inverse = last_axis_first(statistics)
    return (last_axis_first(x) - mean) * inverse


def _statistics(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x = last_axis_first(inputs[0])
    mean = lane_mean(x)
    centred = x - mean
    variance = lane_mean(centred * centred)
    root = np.sqrt(variance + np.float32(attrs.get("epsilon", EPSILON)))
    return last_axis_last(np.stack([mean, np.float32(1.0) / root]))


def _layer_norm(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, statistics, *owned = inputs
    normal = _normal(x, statistics)
    if owned:
        weight, bias = (over_rows(vector, normal) for vector in owned)
        normal = normal * weight + bias
    return last_axis_last(normal)


def _layer_norm_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """With g = grad * weight and y normalised: (g - mean(g) - y * mean(g * y)) / deviation."""
    grad, x, statistics, *owned = inputs
    inverse = last_axis_first(statistics)[1]
    g = last_axis_first(grad)
    g = g * (over_rows(owned[0], g) if owned else np.float32(1.0))
    if not attrs.get("fixed"):
        normal = _normal(x, statistics)
        g = g - lane_mean(g) - normal * lane_mean(g * normal)
    return last_axis_last(g * inverse)


def _weight_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, x, statistics = inputs
    product = _normal(x, statistics) * last_axis_first(grad)
    return lane_sum(product.reshape(len(product), -1).T)


def _emit_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(layer_norm_grad, grad, *node.inputs[:3], attrs=node.attributes)


def _emit_weight_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(layer_norm_weight_grad, grad, *node.inputs[:2])


def _emit_bias_grad(b: Builder, node: Node, grad: int) -> int:
    if len(node.shape) != 2:
        grad = b.emit(shape_ops.reshape, grad, attrs={"shape": (-1, node.shape[-1])})
    return b.emit(bias_grad, grad)


def _statistics_example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((4, 6)).astype(np.float32),), {"epsilon": 1e-3})


def _example(rng: np.random.Generator) -> Example:
    x = rng.standard_normal((4, 6)).astype(np.float32)
    weight, bias = rng.standard_normal((2, 6)).astype(np.float32)
    statistics = rng.uniform(0.5, 2.0, (4, 2)).astype(np.float32)
    return Example((x, statistics, weight, bias), {"fixed": True})


layer_statistics = Op(
    "layer_statistics",
    shape=lambda inputs, attrs: (*inputs[0][:-1], 2),
    forward=_statistics,
    gradients=(None,),
    flops=lambda inputs, out, attrs: 4 * size(inputs[0]),
    example=_statistics_example,
    kind="reduce",
    placement="fp32",
    pinned=(0,),
)
"""Of each row of x its mean and 1 / sqrt(variance + `epsilon`), side by side on the last axis.

The gradient through them is that of `layer_norm`.
"""

layer_norm = Op(
    "layer_norm",
    shape=lambda inputs, attrs: inputs[0],
    forward=_layer_norm,
    gradients=(_emit_grad, None, _emit_weight_grad, _emit_bias_grad),
    flops=lambda inputs, out, attrs: 4 * size(out),
    example=_example,
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    pinned=(1,),
)
"""weight * (x - mean) / deviation + bias, by the `layer_statistics` of x over its last axis.

Weight and bias may be left out together. The gradient of x takes account of the statistics being
those of x, unless they are `fixed`.
"""

layer_norm_grad = Op(
    "layer_norm_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_layer_norm_grad,
    flops=lambda inputs, out, attrs: 11 * size(out),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    pinned=(2,),
)
layer_norm_weight_grad = Op(
    "layer_norm_weight_grad",
    shape=lambda inputs, attrs: (inputs[1][-1],),
    forward=_weight_grad,
    flops=lambda inputs, out, attrs: 4 * size(inputs[1]),
    kind="reduce",
    placement="fp32",
    pinned=(2,),
)
