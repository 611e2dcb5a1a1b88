"""Batch normalisation of [batch, channels, ...] over all but the channels (arXiv 1502.03167)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.dense import bias_grad, channel_sums, channel_work

EPSILON = 1e-5
"""What torch adds to the variance unless told otherwise."""


def along(channels: FloatArray, x: FloatArray) -> FloatArray:
    """Return the view of [channels] that is broadcast over axis 1 of x."""
    return channels.reshape(-1, *(1,) * (x.ndim - 2))


def share_of(x: FloatArray) -> np.float32:
    return np.float32(x.shape[1] / x.size)


def like(x: FloatArray, work: FloatArray) -> FloatArray:
    return np.ndarray(x.shape, np.float32, work, strides=x.strides)


def _inverse(variance: FloatArray, out: FloatArray, epsilon: np.float32) -> None:
    np.add(variance, epsilon, out=out)
    np.sqrt(out, out=out)
    np.divide(np.float32(1.0), out, out=out)


def _bind_batch_norm(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, mean, variance, weight, bias = inputs
    epsilon, factor = np.float32(attrs.get("epsilon", EPSILON)), work[: len(weight)]

    def run() -> None:
        _inverse(variance, factor, epsilon)
        np.multiply(factor, weight, out=factor)
        np.subtract(x, along(mean, x), out=out)
        np.multiply(out, along(factor, x), out=out)
        np.add(out, along(bias, x), out=out)

    return run


def _bind_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """With y normalised: (g - mean(g) - y * mean(g * y)) * weight / deviation; g's alone if not
    `training`."""
    grad, x, mean, variance, weight = inputs
    epsilon, share, n = np.float32(attrs.get("epsilon", EPSILON)), share_of(x), len(weight)
    inverse, total, rest = work[:n], work[n : 2 * n], work[2 * n :]
    normal, product, rest = like(x, rest), like(x, rest[x.size :]), rest[2 * x.size :]
    sum_grad, sum_product = channel_sums(grad, total, rest), channel_sums(product, total, rest)

    def run() -> None:
        _inverse(variance, inverse, epsilon)
        if not attrs.get("training"):
            np.multiply(inverse, weight, out=inverse)
            np.multiply(grad, along(inverse, x), out=out)
            return
        np.subtract(x, along(mean, x), out=normal)
        np.multiply(normal, along(inverse, x), out=normal)
        np.multiply(grad, normal, out=product)
        sum_product()
        np.multiply(total, share, out=total)
        np.multiply(normal, along(total, x), out=normal)
        sum_grad()
        np.multiply(total, share, out=total)
        np.subtract(grad, along(total, x), out=out)
        np.subtract(out, normal, out=out)
        np.multiply(inverse, weight, out=inverse)
        np.multiply(out, along(inverse, x), out=out)

    return run


def _bind_weight_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, x, mean, variance = inputs
    epsilon, n = np.float32(attrs.get("epsilon", EPSILON)), len(mean)
    inverse, product = work[:n], like(x, work[n:])
    total = channel_sums(product, out, work[n + x.size :])

    def run() -> None:
        _inverse(variance, inverse, epsilon)
        np.subtract(x, along(mean, x), out=product)
        np.multiply(product, grad, out=product)
        total()
        np.multiply(out, inverse, out=out)

    return run


def _emit_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(batch_norm_grad, grad, *node.inputs[:4], attrs=node.attributes)


def _emit_weight_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(batch_norm_weight_grad, grad, *node.inputs[:3], attrs=node.attributes)


batch_norm_grad = Op(
    "batch_norm_grad",
    lambda inputs, attrs: inputs[1],
    _bind_grad,
    flops=lambda inputs, out, attrs: (10 if attrs.get("training") else 1) * size(out),
    kind="reduce",
    work=lambda inputs, out, attrs: 2 * (size(out) + out[1]) + channel_work(out),
    pinned=(2, 3, 4),
)
batch_norm_weight_grad = Op(
    "batch_norm_weight_grad",
    lambda inputs, attrs: inputs[2],
    _bind_weight_grad,
    flops=lambda inputs, out, attrs: 3 * size(inputs[1]),
    kind="reduce",
    work=lambda inputs, out, attrs: size(inputs[1]) + size(out) + channel_work(inputs[1]),
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
    _bind_batch_norm,
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
    work=lambda inputs, out, attrs: size(inputs[3]),
    pinned=(1, 2, 3, 4),
)
"""weight * (x - mean) / sqrt(variance + `epsilon`) + bias, all but x [channels].

With `training`, mean and variance are those of x, and the gradient of x takes account of it.
"""
