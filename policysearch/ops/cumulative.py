"""Running sums and products along an axis, the product over one, the logarithm of a sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import multiply, same_shape, subtract
from policysearch.ops.exponentials import exp
from policysearch.ops.reduce import axes_of, kept, reduced
from policysearch.ops.shape import reshape

Doubles = NDArray[np.float64]


def _running_values(
    function: np.ufunc, x: NDArray[np.floating], axis: int, *, back: bool
) -> Doubles:
    if back:
        return np.flip(_running_values(function, np.flip(x, axis), axis, back=False), axis)
    result: Doubles = function.accumulate(x, axis, np.float64)
    return result


def _cumsum(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    back = bool(attrs.get("reverse"))
    return _running_values(np.add, inputs[0], attrs["axis"], back=back).astype(np.float32)


def _by_cumsum(b: Builder, node: Node, grad: int) -> int:
    attrs = node.attributes
    return b.emit(cumsum, grad, attrs={**attrs, "reverse": not attrs.get("reverse")})


def _values(rng: np.random.Generator) -> FloatArray:
    return rng.uniform(0.6, 1.4, (3, 4, 2)).astype(np.float32)


cumsum: Op = Op(
    "cumsum",
    same_shape,
    _cumsum,
    gradients=(_by_cumsum,),
    example=lambda rng: Example((_values(rng),), {"axis": 1}),
    kind="reduce",
    placement="fp32",
)
"""Sums of x from the first value along `axis` to each; `reverse`, from each to the last."""


def _others(x: FloatArray, axis: int) -> Doubles:
    """Return for each value the product of the others along `axis`; nothing is divided by 0."""
    ones = np.ones_like(np.take(x, [0], axis))
    before = np.concatenate((ones, np.delete(x, -1, axis)), axis)
    after = np.concatenate((np.delete(x, 0, axis), ones), axis)
    forward = _running_values(np.multiply, before, axis, back=False)
    return forward * _running_values(np.multiply, after, axis, back=True)


def _product_slope(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, y = inputs
    (axis,) = axes_of(x.shape, attrs)
    if np.all(x):
        return y / x
    return _others(x, axis).astype(np.float32)


product_slope = Op(
    "product_slope",
    lambda inputs, attrs: inputs[0],
    _product_slope,
    flops=lambda inputs, out, attrs: size(out),
    pointwise=False,
)


def _by_product(b: Builder, node: Node, grad: int) -> int:
    """grad * (y / x), as torch; where values are 0, the product of the others for y / x."""
    (x,) = node.inputs
    shape = {"shape": kept(b.shape(x), axes_of(b.shape(x), node.attributes))}
    grad, y = (b.emit(reshape, i, attrs=shape) for i in (grad, node.id))
    return b.emit(multiply, grad, b.emit(product_slope, x, y, attrs=node.attributes))


def _product(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (x,) = inputs
    result: FloatArray = np.multiply.reduce(x, axis=axes_of(x.shape, attrs))
    return result.reshape(reduced([x.shape], attrs))


prod = Op(
    "prod",
    reduced,
    _product,
    gradients=(_by_product,),
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example((_values(rng),), {"axes": (1,)}),
    kind="reduce",
    placement="fp32",
)
"""Product over the one axis in `axes`."""


def _cumprod_slope(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Return the sums of grad y from each value on, divided by x.

    Where x has zeros: for value i the sum over j from i on of grad j times the other factors of
    y j, by which nothing is divided.
    """
    if np.all(inputs[2]):
        return inputs[0] / inputs[2]
    grad, x = (np.moveaxis(each, attrs["axis"], 0) for each in inputs[1:])
    result = np.zeros_like(x)
    for i in range(len(x)):
        factors = np.concatenate((x[:i], np.ones_like(x[:1]), x[i + 1 :]))
        products = _running_values(np.multiply, factors, 0, back=False)
        result[i] = np.add.reduce(grad[i:] * products[i:])
    return np.moveaxis(result, 0, attrs["axis"])


cumprod_slope = Op(
    "cumprod_slope",
    same_shape,
    _cumprod_slope,
    flops=lambda inputs, out, attrs: size(out),
    kind="reduce",
)


def _by_cumprod(b: Builder, node: Node, grad: int) -> int:
    attrs = {"axis": node.attributes["axis"], "reverse": True}
    sums = b.emit(cumsum, b.emit(multiply, grad, node.id), attrs=attrs)
    return b.emit(cumprod_slope, sums, grad, node.inputs[0], attrs=node.attributes)


cumprod = Op(
    "cumprod",
    same_shape,
    lambda inputs, attrs: _running_values(np.multiply, inputs[0], attrs["axis"], back=False).astype(
        np.float32
    ),
    gradients=(_by_cumprod,),
    example=lambda rng: Example((_values(rng),), {"axis": 1}),
    kind="reduce",
    placement="fp32",
)
"""Products of x from the first value along `axis` to each."""


def _by_exponentials(b: Builder, node: Node, grad: int) -> int:
    """grad * exp(x - y)."""
    x = node.inputs[0]
    shape = {"shape": kept(b.shape(x), axes_of(b.shape(x), node.attributes))}
    grad, y = (b.emit(reshape, i, attrs=shape) for i in (grad, node.id))
    return b.emit(multiply, grad, b.emit(exp, b.emit(subtract, x, y)))


def _log_sum_exp(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, *value = inputs
    if not value:
        largest = np.maximum.reduce(x, axis=axes_of(x.shape, attrs), keepdims=True)
        powers = np.add.reduce(np.exp(x - largest), axis=axes_of(x.shape, attrs), keepdims=True)
        value = [largest + np.log(powers)]
    return value[0].reshape(reduced([x.shape], attrs))


log_sum_exp = Op(
    "logsumexp",
    lambda inputs, attrs: reduced(inputs[:1], attrs),
    _log_sum_exp,
    gradients=(_by_exponentials, None),
    flops=lambda inputs, out, attrs: 12 * size(inputs[0]) if len(inputs) == 1 else 0,
    example=lambda rng: Example((_values(rng),), {"axes": (1,)}),
    kind="reduce",
    placement="fp32",
)
"""log of the sum of e^x over `axes`, with the gradient of torch.

A second input is that value, computed in steps that round as torch's do.
"""
