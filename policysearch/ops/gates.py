"""Activations beside relu, tanh, sigmoid and gelu: silu and those made of straight pieces."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, FloatArray
from policysearch.ops.one_tensor import with_gradient

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_THREE, _SIX = np.float32(3.0), np.float32(6.0)


def _logistic(x: FloatArray, out: FloatArray) -> None:
    """Half of 1 + tanh(x / 2): no exponential that overflows."""
    np.multiply(x, _HALF, out=out)
    np.tanh(out, out=out)
    np.multiply(out, _HALF, out=out)
    np.add(out, _HALF, out=out)


def _silu(x: FloatArray, out: FloatArray, attrs: Attrs) -> None:
    _logistic(x, out)
    np.multiply(out, x, out=out)


def _silu_slope(x: FloatArray, out: FloatArray, scratch: FloatArray, attrs: Attrs) -> None:
    """s (1 + x (1 - s)) with s the logistic function of x."""
    _logistic(x, out)
    np.subtract(_ONE, out, out=scratch)
    np.multiply(scratch, x, out=scratch)
    np.add(scratch, _ONE, out=scratch)
    np.multiply(out, scratch, out=out)


silu, silu_grad = with_gradient("silu", _silu, _silu_slope, flops=11)
"""x times the logistic function of x (arXiv 1702.03118)."""


def _hardtanh(x: FloatArray, out: FloatArray, attrs: Attrs) -> None:
    np.maximum(x, np.float32(attrs["minimum"]), out=out)
    np.minimum(out, np.float32(attrs["maximum"]), out=out)


def _hardtanh_slope(x: FloatArray, out: FloatArray, scratch: FloatArray, attrs: Attrs) -> None:
    inside = (x > np.float32(attrs["minimum"])) & (x < np.float32(attrs["maximum"]))
    np.copyto(out, inside)


hardtanh, hardtanh_grad = with_gradient(
    "hardtanh",
    _hardtanh,
    _hardtanh_slope,
    flops=2,
    attrs=MappingProxyType({"minimum": -0.09, "maximum": 6.0}),
)
"""x between `minimum` and `maximum`, where the slope is 0 as in torch; relu6 is 0 to 6."""


def _leaky(x: FloatArray, out: FloatArray, attrs: Attrs) -> None:
    np.multiply(x, np.float32(attrs["negative_slope"]), out=out)
    np.copyto(out, x, where=x > 0)


def _leaky_slope(x: FloatArray, out: FloatArray, scratch: FloatArray, attrs: Attrs) -> None:
    out.fill(attrs["negative_slope"])
    np.copyto(out, _ONE, where=x > 0)


leaky_relu, leaky_relu_grad = with_gradient(
    "leaky_relu",
    _leaky,
    _leaky_slope,
    flops=2,
    attrs=MappingProxyType({"negative_slope": 0.1}),
)
"""x, times `negative_slope` where it is not positive."""


def _hardswish(x: FloatArray, out: FloatArray, attrs: Attrs) -> None:
    np.add(x, _THREE, out=out)
    np.maximum(out, np.float32(0.0), out=out)
    np.minimum(out, _SIX, out=out)
    np.multiply(out, x, out=out)
    np.divide(out, _SIX, out=out)


def _hardswish_slope(x: FloatArray, out: FloatArray, scratch: FloatArray, attrs: Attrs) -> None:
    np.divide(x, _THREE, out=out)
    np.add(out, _HALF, out=out)
    np.copyto(out, np.float32(0.0), where=x <= -_THREE)
    np.copyto(out, _ONE, where=x >= _THREE)


hardswish, hardswish_grad = with_gradient("hardswish", _hardswish, _hardswish_slope, flops=5)
"""x relu6(x + 3) / 6 (arXiv 1905.02244)."""
