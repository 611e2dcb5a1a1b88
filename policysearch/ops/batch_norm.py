"""Batch normalisation of [batch, channels, ...] over all but the channels (arXiv 1502.03167).

The statistics of a batch and their running averages are ops of their own, so that training feeds
`batch_norm` those of the batch and evaluation the running ones, and all are float32 whatever format
x has.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.dense import bias_grad
from policysearch.ops.summation import channel_sum

EPSILON = 1e-5
"""What torch adds to the variance unless told otherwise."""


def along(channels: FloatArray, x: FloatArray) -> FloatArray:
    """Return the view of [channels] that is broadcast over axis 1 of x."""
    return channels.reshape(-1, *(1,) * (x.ndim - 2))


def inverse_deviation(variance: FloatArray, attrs: Attrs) -> FloatArray:
    """Return 1 / sqrt(variance + `epsilon`)."""
    return np.float32(1.0) / np.sqrt(variance + np.float32(attrs.get("epsilon", EPSILON)))


def _channel_mean(x: FloatArray) -> FloatArray:
    return channel_sum(x) * np.float32(x.shape[1] / x.size)


def _batch_norm(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, mean, variance, weight, bias = inputs
    factor = inverse_deviation(variance, attrs) * weight
    return (x - along(mean, x)) * along(factor, x) + along(bias, x)


def _grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """With y normalised: (g - mean(g) - y * mean(g * y)) * weight / deviation; g's alone if not
    `training`."""
    grad, x, mean, variance, weight = inputs
    inverse = inverse_deviation(variance, attrs)
    factor = along(inverse * weight, x)
    if not attrs.get("training"):
        return grad * factor
    normal = (x - along(mean, x)) * along(inverse, x)
    through = normal * along(_channel_mean(grad * normal), x)
    return (grad - along(_channel_mean(grad), x) - through) * factor


def _weight_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, x, mean, variance = inputs
    return channel_sum((x - along(mean, x)) * grad) * inverse_deviation(variance, attrs)


def _emit_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(batch_norm_grad, grad, *node.inputs[:4], attrs=node.attributes)


def _emit_weight_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(batch_norm_weight_grad, grad, *node.inputs[:3], attrs=node.attributes)


batch_norm_grad = Op(
    "batch_norm_grad",
    lambda inputs, attrs: inputs[1],
    _grad,
    flops=lambda inputs, out, attrs: (10 if attrs.get("training") else 1) * size(out),
    kind="reduce",
    pinned=(2, 3, 4),
)
batch_norm_weight_grad = Op(
    "batch_norm_weight_grad",
    lambda inputs, attrs: inputs[2],
    _weight_grad,
    flops=lambda inputs, out, attrs: 3 * size(inputs[1]),
    kind="reduce",
    pinned=(2, 3),
)


def _norm_example(rng: np.random.Generator) -> Example:
    mean, weight, bias = rng.standard_normal((3, 4)).astype(np.float32)
    variance = rng.uniform(0.5, 2.0, 4).astype(np.float32)
    x = rng.standard_normal((3, 4, 2, 3)).astype(np.float32)
    return Example((x, mean, variance, weight, bias), {"epsilon": 1e-3})


batch_norm = Op(
    "batch_norm",
    lambda inputs, attrs: inputs[0],
    _batch_norm,
    gradients=(
        _emit_grad,
        None,
        None,
        _emit_weight_grad,
        lambda b, node, grad: b.emit(bias_grad, grad),
    ),
    flops=lambda inputs, out, attrs: 3 * size(out),
    example=_norm_example,
    in_place=(0,),
    pinned=(1, 2, 3, 4),
)
"""weight * (x - mean) / sqrt(variance + `epsilon`) + bias, all but x [channels].

With `training`, mean and variance are those of x, and the gradient of x takes account of it.
"""


def _channels(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (inputs[0][1],)


def _batch_variance(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The mean square of what is left without the mean: no difference of large numbers."""
    (x,) = inputs
    centred = x - along(_channel_mean(x), x)
    return _channel_mean(centred * centred)


def _example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((3, 4, 2, 3)).astype(np.float32),))


batch_mean = Op(
    "batch_mean",
    _channels,
    lambda inputs, attrs: _channel_mean(inputs[0]),
    gradients=(None,),
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
    pinned=(0,),
)
"""Mean of every channel [channels]; the gradient through it is that of `batch_norm`."""

batch_variance = Op(
    "batch_variance",
    _channels,
    _batch_variance,
    gradients=(None,),
    flops=lambda inputs, out, attrs: 4 * size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
    pinned=(0,),
)
"""Biased variance of every channel [channels]; the gradient through it is that of `batch_norm`."""


def _moving_average(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    old, new = inputs
    momentum = attrs["momentum"]
    keep, share = np.float32(1.0 - momentum), np.float32(momentum * attrs.get("factor", 1.0))
    return old * keep + new * share


moving_average = Op(
    "moving_average",
    lambda inputs, attrs: inputs[0],
    _moving_average,
    gradients=(None, None),
    flops=lambda inputs, out, attrs: 3 * size(out),
    example=lambda rng: Example(
        tuple(rng.standard_normal((2, 5)).astype(np.float32)), {"momentum": 0.1, "factor": 1.25}
    ),
    placement="fp32",
    in_place=(0,),
)
"""(1 - `momentum`) * old + `momentum` * `factor` * new: running statistics, as torch keeps them.

`factor` is n / (n - 1) for a variance, which torch keeps unbiased.
"""
