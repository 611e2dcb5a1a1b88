"""Softplus and the activations made of it."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, FloatArray
from policysearch.ops.activations import logistic
from policysearch.ops.unary import unary

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


def _softplus_of(x: FloatArray) -> FloatArray:
    """log(1 + exp(x)) without an exponential that overflows."""
    result: FloatArray = np.logaddexp(_ZERO, x)
    return result


def _softplus(x: FloatArray, attrs: Attrs) -> FloatArray:
    steep = x * np.float32(attrs["beta"])
    curved = _softplus_of(steep) / np.float32(attrs["beta"])
    return np.where(steep > np.float32(attrs["threshold"]), x, curved)


def _softplus_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    steep = x * np.float32(attrs["beta"])
    return np.where(steep > np.float32(attrs["threshold"]), _ONE, logistic(steep))


softplus, softplus_grad = unary(
    "softplus",
    _softplus,
    _softplus_slope,
    flops=22,
    placement="fp32",
    attrs=MappingProxyType({"beta": 1.5, "threshold": 20.0}),
)
"""log(1 + exp(beta x)) / beta, and x itself where beta x is above `threshold`."""


def _mish_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    t: FloatArray = np.tanh(_softplus_of(x))
    return x * logistic(x) * (_ONE - t * t) + t


mish, mish_grad = unary(
    "mish", lambda x, attrs: np.tanh(_softplus_of(x)) * x, _mish_slope, flops=31
)
"""x tanh(log(1 + exp(x))) (arXiv 1908.08681)."""

log_sigmoid, log_sigmoid_grad = unary(
    "log_sigmoid",
    lambda x, attrs: np.minimum(x, _ZERO) - np.log1p(np.exp(-np.abs(x))),
    lambda x, attrs: logistic(-x),
    flops=22,
)
"""The logarithm of the logistic function."""
