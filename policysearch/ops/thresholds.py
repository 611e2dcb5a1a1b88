"""Activations with another formula below a threshold."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, FloatArray
from policysearch.ops.unary import unary

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


def _elu(x: FloatArray, attrs: Attrs) -> FloatArray:
    low = np.expm1(np.minimum(x, _ZERO) * np.float32(attrs["inner"])) * np.float32(attrs["below"])
    return np.where(x < 0, low, x * np.float32(attrs["above"]))


def _elu_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    steepest = np.float32(attrs["below"] * attrs["inner"])
    low = np.exp(np.minimum(x, _ZERO) * np.float32(attrs["inner"])) * steepest
    return np.where(x <= 0, low, np.float32(attrs["above"]))


elu, elu_grad = unary(
    "elu",
    _elu,
    _elu_slope,
    flops=12,
    attrs=MappingProxyType({"below": 1.3, "above": 1.1, "inner": 0.8}),
)
"""above x, and below (exp(inner x) - 1) where x is negative: ELU, SELU and CELU
(arXiv 1511.07289, 1706.02515, 1704.07483)."""


threshold, threshold_grad = unary(
    "threshold",
    lambda x, attrs: np.where(x <= np.float32(attrs["threshold"]), np.float32(attrs["value"]), x),
    lambda x, attrs: np.where(x <= np.float32(attrs["threshold"]), _ZERO, _ONE),
    attrs=MappingProxyType({"threshold": 0.05, "value": 0.04}),
)
"""x, and the constant `value` where x is not above `threshold`."""


def _outside(x: FloatArray, attrs: Attrs) -> FloatArray:
    return np.where(np.abs(x) <= np.float32(attrs["width"]), _ZERO, _ONE)


hardshrink, hardshrink_grad = unary(
    "hardshrink",
    lambda x, attrs: np.where(np.abs(x) <= np.float32(attrs["width"]), _ZERO, x),
    _outside,
    attrs=MappingProxyType({"width": 0.05}),
)
"""x, and 0 where it is at most `width` from it."""

softshrink, softshrink_grad = unary(
    "softshrink",
    lambda x, attrs: x - np.clip(x, -np.float32(attrs["width"]), np.float32(attrs["width"])),
    _outside,
    flops=2,
    attrs=MappingProxyType({"width": 0.05}),
)
"""x moved towards 0 by `width`, and 0 where that is farther."""
