"""Variance, standard deviation and vector norms over axes; gradients are the ops of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import (
    Attrs,
    Example,
    FloatArray,
    GradientRule,
    Node,
    Op,
    Placement,
    Shape,
    size,
)
from policysearch.ops import reduce  # not `sum_over` itself: the catalogue lists ops in this order
from policysearch.ops.builder import Builder
from policysearch.ops.composite import composite
from policysearch.ops.elementwise import divide, multiply, scale, subtract
from policysearch.ops.exponentials import pow_constant
from policysearch.ops.reduce import axes_of, count_of, kept, mean, reduced
from policysearch.ops.shape import reshape


def _example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((3, 4, 5)).astype(np.float32),), {"axes": (1, -1)})


def _moment(
    name: str,
    values: Callable[[FloatArray, tuple[int, ...], Attrs], FloatArray],
    gradient: GradientRule,
    placement: Placement = "promote",
) -> Op:
    def forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
        (x,) = inputs
        result = values(x.astype(np.float64), axes_of(x.shape, attrs), attrs)
        return result.astype(np.float32).reshape(reduced([x.shape], attrs))

    return Op(
        name,
        reduced,
        forward,
        gradients=(gradient,),
        flops=lambda inputs, out, attrs: 4 * size(inputs[0]),
        example=_example,
        kind="reduce",
        placement=placement,
    )


def _value_with_axes(b: Builder, node: Node, i: int) -> int:
    """Return value `i` of the result's shape, with extent 1 where it was summed over."""
    x = b.shape(node.inputs[0])
    shape = kept(x, axes_of(x, node.attributes))
    return i if b.shape(i) == shape else b.emit(reshape, i, attrs={"shape": shape})


def _variance(x: FloatArray, axes: tuple[int, ...], attrs: Attrs) -> FloatArray:
    return np.var(x, axis=axes, ddof=attrs.get("correction", 1))


def _by_variance(b: Builder, node: Node, grad: int) -> int:
    """2 / (n - correction) * grad * (x - mean)."""
    (x,) = node.inputs
    shape, attrs = b.shape(x), node.attributes
    divisor = count_of(shape, attrs) - attrs.get("correction", 1)
    axes = {"axes": axes_of(shape, attrs), "keepdim": True}
    centred = b.emit(subtract, x, b.emit(mean, x, attrs=axes))
    scaled = b.emit(scale, _value_with_axes(b, node, grad), attrs={"factor": 2.0 / divisor})
    return b.emit(multiply, scaled, centred)


def _or_zero(numerator: FloatArray, divisor: FloatArray) -> FloatArray:
    shape = np.broadcast_shapes(numerator.shape, divisor.shape)
    return np.divide(
        numerator, divisor, out=np.zeros(shape, np.float32, like=numerator), where=divisor != 0
    )


std_grad = Op(
    "std_grad",
    shape=lambda inputs, attrs: inputs[0],
    forward=lambda inputs, attrs: _or_zero(inputs[0], inputs[1] * np.float32(2.0)),
    flops=lambda inputs, out, attrs: 2 * size(out),
)
"""The gradient of the variance, of that of its root and the root: grad / 2y, 0 where y is."""


def _by_deviation(b: Builder, node: Node, grad: int) -> int:
    return _by_variance(b, node, b.emit(std_grad, grad, node.id))


variance = _moment("var", _variance, _by_variance)
"""Mean square distance from the mean over `axes`; `correction` is taken off the count, 1 if not
given."""

deviation = _moment("std", lambda *of: np.sqrt(_variance(*of)), _by_deviation)
"""The root of `var`."""


def _norm(x: FloatArray, axes: tuple[int, ...], attrs: Attrs) -> FloatArray:
    ord, size_of = attrs.get("ord", 2), np.abs(x)
    if math.isinf(ord):
        extreme = np.maximum if ord > 0 else np.minimum
        return extreme.reduce(size_of, axis=axes)
    if ord == 0:
        return np.add.reduce(x != 0, axis=axes, dtype=np.float64)
    total = np.add.reduce(size_of**ord, axis=axes)
    return np.power(total, 1.0 / ord)


def _slope(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The gradient of y; but for sign(x) |x|^(ord - 1) where ord is none of 0, 1, 2, infinity."""
    x, y = inputs
    ord = attrs.get("ord", 2)
    if ord == 2:
        return _or_zero(x, y)
    if math.isinf(ord):
        chosen = np.abs(x) == y
        count = np.sum(chosen, axes_of(x.shape, attrs), np.float32, keepdims=True)
        return np.sign(x) * chosen / count
    if ord in (0, 1):
        return np.sign(x) * np.float32(ord)
    power = np.power(np.abs(x), np.float32(ord - 1), out=np.zeros_like(x), where=x != 0)
    return np.sign(x) * power


norm_slope = Op(
    "norm_slope",
    shape=lambda inputs, attrs: inputs[0],
    forward=_slope,
    flops=lambda inputs, out, attrs: 2 * size(out),
    pointwise=False,
)

quotient_or_zero = Op(
    "quotient_or_zero",
    shape=lambda inputs, attrs: inputs[0],
    forward=lambda inputs, attrs: _or_zero(*inputs),
)
"""First divided by second, 0 where that is 0."""


def _by_norm(b: Builder, node: Node, grad: int) -> int:
    """grad * slope; for any other ord sign(x) |x|^(ord - 1) * (grad / y^(ord - 1))."""
    x, y, grad = node.inputs[0], _value_with_axes(b, node, node.id), _value_with_axes(b, node, grad)
    ord = node.attributes.get("ord", 2)
    if ord not in (0, 1, 2) and not math.isinf(ord):
        power = b.emit(pow_constant, y, attrs={"exponent": ord - 1.0})
        grad = b.emit(quotient_or_zero, grad, power)
    slope = b.emit(norm_slope, x, y, attrs=node.attributes)
    return b.emit(multiply, grad, slope)


vector_norm = _moment("vector_norm", _norm, _by_norm, "fp32")
"""(sum of |x|^ord over `axes`)^(1 / ord), `ord` 2 if not given; the largest for infinity."""


def mean_of_chosen(rows: Shape, mask: Shape) -> Op:
    """Return the op of the mean of rows that a mask chooses, of rows that are 0 elsewhere."""
    axes, each = tuple(range(len(rows))), float(size(rows[1:]))

    def mean_inside(b: Builder, inputs: Sequence[int]) -> int:
        total = b.emit(reduce.sum_over, inputs[0], attrs={"axes": axes, "keepdim": False})
        count = b.emit(reduce.sum_over, inputs[1], attrs={"axes": (0,), "keepdim": False})
        return b.emit(divide, total, b.emit(scale, count, attrs={"factor": each}))

    return composite(mean.name, (rows, mask), mean_inside, whole=(1,))
