"""Norms that sum, and keep what is between, in a format: devices that have no float32 inside.

Every variant does what its op does, in the same order of operations, and rounds after each one onto
the format `inner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, Shape
from policysearch.ops.batch_norm import (
    EPSILON,
    batch_mean,
    batch_norm,
    batch_norm_grad,
    batch_norm_weight_grad,
    batch_variance,
)
from policysearch.ops.layer_norm import (
    layer_norm,
    layer_norm_grad,
    layer_norm_weight_grad,
    layer_statistics,
)
from policysearch.ops.rounded_arithmetic import RoundedArithmetic, inner_arithmetic


def _rows(x: FloatArray) -> FloatArray:
    """Return [..., n] as [n, rows]: a layer norm is over the first axis of it."""
    return x.reshape(-1, x.shape[-1]).T


def _channels(x: FloatArray) -> FloatArray:
    """Return [batch, channels, ...] as [values, channels], which a batch norm is over."""
    return np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])


def _like_rows(matrix: FloatArray, shape: Shape) -> FloatArray:
    return matrix.T.reshape(shape)


def _like_channels(matrix: FloatArray, shape: Shape) -> FloatArray:
    moved = (shape[0], *shape[2:], shape[1])
    return np.moveaxis(matrix.reshape(moved), -1, 1)


Compute = Callable[[RoundedArithmetic, Sequence[FloatArray], Attrs], FloatArray]


def _layer_statistics(
    r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs
) -> FloatArray:
    x = _rows(inputs[0])
    mean = r.mean(x)
    inverse = r.inverse(r.variance(x, mean), attrs.get("epsilon", EPSILON))
    return np.stack((mean, inverse), axis=-1).reshape(*inputs[0].shape[:-1], 2)


def _layer_norm(r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, statistics, *owned = inputs
    y = r.normal(_rows(x), *_rows(statistics))
    if owned:
        weight, bias = (r(each)[:, np.newaxis] for each in owned)
        y = r(r(y * weight) + bias)
    return _like_rows(y, x.shape)


def _layer_norm_grad(
    r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs
) -> FloatArray:
    grad, x, statistics, *owned = inputs
    mean, inverse = _rows(statistics)
    g = _rows(grad)
    if owned:
        g = r(g * r(owned[0])[:, np.newaxis])
    normal = r.normal(_rows(x), mean, inverse)
    return _like_rows(r.gradient(g, normal, inverse, bool(attrs.get("fixed"))), x.shape)


def _layer_norm_weight_grad(
    r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs
) -> FloatArray:
    grad, x, statistics = inputs
    normal = r.normal(_rows(x), *_rows(statistics))
    return r.sum(r(normal * _rows(grad)).T)


def _batch_mean(r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return r.mean(_channels(inputs[0]))


def _batch_variance(r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x = _channels(inputs[0])
    return r.variance(x, r.mean(x))


def _batch_norm(r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, mean, variance, weight, bias = inputs
    factor = r(r.inverse(variance, attrs.get("epsilon", EPSILON)) * r(weight))
    return _like_channels(r(r.normal(_channels(x), mean, factor) + r(bias)), x.shape)


def _batch_norm_grad(
    r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs
) -> FloatArray:
    grad, x, mean, variance, weight = inputs
    inverse = r.inverse(variance, attrs.get("epsilon", EPSILON))
    normal, factor = r.normal(_channels(x), mean, inverse), r(inverse * r(weight))
    fixed = not attrs.get("training")
    return _like_channels(r.gradient(_channels(grad), normal, factor, fixed), x.shape)


def _batch_norm_weight_grad(
    r: RoundedArithmetic, inputs: Sequence[FloatArray], attrs: Attrs
) -> FloatArray:
    grad, x, mean, variance = inputs
    inverse = r.inverse(variance, attrs.get("epsilon", EPSILON))
    return r.sum(r(r.normal(_channels(x), mean, inverse) * _channels(grad)))


def _variant(op: Op, compute: Compute) -> Op:
    def forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
        return compute(inner_arithmetic(attrs["inner"], attrs), inputs, attrs)

    return replace(op, name=f"{op.name}_inner", forward=forward, gradients=(), example=None)


ROUNDED_NORMS: Mapping[str, Op] = MappingProxyType(
    {
        op.name: _variant(op, compute)
        for op, compute in (
            (layer_statistics, _layer_statistics),
            (layer_norm, _layer_norm),
            (layer_norm_grad, _layer_norm_grad),
            (layer_norm_weight_grad, _layer_norm_weight_grad),
            (batch_mean, _batch_mean),
            (batch_variance, _batch_variance),
            (batch_norm, _batch_norm),
            (batch_norm_grad, _batch_norm_grad),
            (batch_norm_weight_grad, _batch_norm_weight_grad),
        )
    }
)
"""By the name of the op with float32 inside: the one with a format, its attribute `inner`."""
