"""Losses of each probability, or of its logarithm or logit, and of each expected count.

Source: torch 2.13, `aten/src/ATen/native/Loss.cpp`; gradients as in `FunctionsManual.cpp`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Attrs, FloatArray
from policysearch.ops.activations import logistic
from policysearch.ops.paired_losses import paired_loss

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
LEAST_LOG = np.float32(-100.0)
"""torch has no smaller logarithm of a probability in a binary cross entropy."""


def _shares(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Probabilities away from 0 and 1."""
    first, second = rng.uniform(0.3, 0.7, (2, 3, 5)).astype(np.float32)
    return first, second


def _log(x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(x), LEAST_LOG)


def _binary(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return (y - _ONE) * _log(_ONE - x) - y * _log(x)


def _binary_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return (x - y) / np.maximum((_ONE - x) * x, np.float32(1e-12))


def _binary_of_target(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(_ONE - x) - np.log(x)


def _log_logistic(x: FloatArray) -> Any:
    return np.minimum(x, _ZERO) - np.log1p(np.exp(-np.abs(x)))


def _logits(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return (_ONE - y) * x - _log_logistic(x)


def _divergence(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    if attrs.get("log_target"):
        return np.exp(y) * (y - x)
    return np.where(y > 0, y * np.log(np.where(y > 0, y, _ONE)), _ZERO) - y * x


def _divergence_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return -np.exp(y) if attrs.get("log_target") else -y


def _divergence_of_target(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    """Of a probability 0 it is no number, as in torch."""
    if attrs.get("log_target"):
        return np.exp(y) * (y - x + _ONE)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.where(y > 0, y, _ONE)) + y / y - x


def _poisson(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    epsilon = np.float32(attrs.get("epsilon", 1e-8))
    logs = attrs.get("log_input", True)
    losses = np.exp(x) - y * x if logs else x - y * np.log(x + epsilon)
    if not attrs.get("full"):
        return losses
    large = np.where(y > _ONE, y, np.float32(2.0))
    stirling = large * np.log(large) - large + _HALF * np.log(np.float32(2.0 * np.pi) * large)
    return losses + np.where(y > _ONE, stirling, _ZERO)


def _poisson_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    if attrs.get("log_input", True):
        return np.exp(x) - y
    return _ONE - y / (x + np.float32(attrs.get("epsilon", 1e-8)))


def _margin_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return -y * logistic(-x * y)


binary_cross_entropy = paired_loss(
    "binary_cross_entropy", _binary, _binary_slope, _binary_of_target, flops=8, inputs=_shares
)
"""-y log x - (1 - y) log(1 - x) of probabilities, no logarithm below LEAST_LOG."""
binary_cross_entropy_with_logits = paired_loss(
    "binary_cross_entropy_with_logits",
    _logits,
    lambda x, y, attrs: logistic(x) - y,
    lambda x, y, attrs: -x,
    flops=12,
)
kl_divergence = paired_loss(
    "kl_divergence",
    _divergence,
    _divergence_slope,
    _divergence_of_target,
    flops=6,
    inputs=_shares,
)
"""y (log y - x) of logarithms x and probabilities y, or, with `log_target`, of logarithms both."""
poisson = paired_loss(
    "poisson",
    _poisson,
    _poisson_slope,
    flops=8,
    inputs=_shares,
    attrs=MappingProxyType({"log_input": False}),
)
"""exp(x) - y x of a logarithm x, or x - y log(x + epsilon); `full` adds log y! by Stirling."""
soft_margin = paired_loss(
    "soft_margin", lambda x, y, attrs: -_log_logistic(x * y), _margin_slope, flops=12
)
"""log(1 + exp(-x y)) of scores x and signs y."""
