"""Activations with their gradient ops; relu is beside the sums, gelu has a file of its own."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, size
from policysearch.ops.elementwise import one_example, same_shape, ufunc
from policysearch.ops.unary import unary

_ZERO, _ONE, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
_THREE, _SIX = np.float32(3.0), np.float32(6.0)

tanh_grad = Op(
    "tanh_grad",
    same_shape,
    lambda inputs, attrs: inputs[0] * (_ONE - inputs[1] * inputs[1]),
    flops=lambda inputs, out, attrs: 3 * size(out),
    in_place=(0,),
)
tanh = Op(
    "tanh",
    same_shape,
    ufunc(np.tanh),
    gradients=(lambda b, node, grad: b.emit(tanh_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 10 * size(out),
    example=one_example,
    in_place=(0,),
)


def logistic(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), as half of 1 + tanh(x / 2): no exponential that overflows."""
    return np.tanh(x * _HALF) * _HALF + _HALF


sigmoid_grad = Op(
    "sigmoid_grad",
    same_shape,
    lambda inputs, attrs: inputs[0] * ((_ONE - inputs[1]) * inputs[1]),
    flops=lambda inputs, out, attrs: 3 * size(out),
    in_place=(0,),
)
sigmoid = Op(
    "sigmoid",
    same_shape,
    lambda inputs, attrs: logistic(inputs[0]),
    gradients=(lambda b, node, grad: b.emit(sigmoid_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 10 * size(out),
    example=one_example,
    in_place=(0,),
)


def _silu_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    """s (1 + x (1 - s)) with s the logistic function of x."""
    s = logistic(x)
    return s * ((_ONE - s) * x + _ONE)


silu, silu_grad = unary("silu", lambda x, attrs: logistic(x) * x, _silu_slope, flops=11)
"""x times the logistic function of x (arXiv 1702.03118)."""


def _hardtanh(x: FloatArray, attrs: Attrs) -> FloatArray:
    return np.minimum(np.maximum(x, np.float32(attrs["minimum"])), np.float32(attrs["maximum"]))


def _hardtanh_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    inside = (x > np.float32(attrs["minimum"])) & (x < np.float32(attrs["maximum"]))
    return inside.astype(np.float32)


hardtanh, hardtanh_grad = unary(
    "hardtanh",
    _hardtanh,
    _hardtanh_slope,
    flops=2,
    attrs=MappingProxyType({"minimum": -0.09, "maximum": 6.0}),
)
"""x between `minimum` and `maximum`, where the slope is 0 as in torch; relu6 is 0 to 6."""

leaky_relu, leaky_relu_grad = unary(
    "leaky_relu",
    lambda x, attrs: np.where(x > 0, x, x * np.float32(attrs["negative_slope"])),
    lambda x, attrs: np.where(x > 0, _ONE, np.float32(attrs["negative_slope"])),
    flops=2,
    attrs=MappingProxyType({"negative_slope": 0.1}),
)
"""x, times `negative_slope` where it is not positive."""


def _hardswish(x: FloatArray, attrs: Attrs) -> FloatArray:
    return np.minimum(np.maximum(x + _THREE, np.float32(0.0)), _SIX) * x / _SIX


def _hardswish_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    middle = np.where(x <= -_THREE, np.float32(0.0), x / _THREE + _HALF)
    return np.where(x >= _THREE, _ONE, middle)


hardswish, hardswish_grad = unary("hardswish", _hardswish, _hardswish_slope, flops=5)
"""x relu6(x + 3) / 6 (arXiv 1905.02244)."""


def _hardsigmoid_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    return np.where((x > -_THREE) & (x < _THREE), _ONE / _SIX, _ZERO)


hardsigmoid, hardsigmoid_grad = unary(
    "hardsigmoid",
    lambda x, attrs: np.minimum(np.maximum(x + _THREE, _ZERO), _SIX) / _SIX,
    _hardsigmoid_slope,
    flops=4,
)
"""relu6(x + 3) / 6 (arXiv 1905.02244)."""
