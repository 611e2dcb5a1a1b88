"""Losses of each element of two tensors, before a mean or a sum over them.

Source: torch 2.13, `aten/src/ATen/native/Loss.cpp` and `BinaryOpsKernel.cpp`: what each computes in
one kernel is one op here, its gradients are one op for each side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import same_shape

Pair = Callable[[FloatArray, FloatArray, Attrs], Any]
"""Of the predictions, the targets and the attributes."""

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
LEAST_LOG = np.float32(-100.0)
"""torch has no smaller logarithm of a probability in a binary cross entropy."""


def _normal(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Two tensors whose elements are apart by neither 0 nor 1, where losses have kinks."""
    first = rng.standard_normal((3, 5)).astype(np.float32)
    apart = rng.choice(np.array([-1.6, -0.6, 0.4, 1.7], np.float32), (3, 5))
    return first, first - apart


def _sides(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Numbers away from 0 and from a margin of 1, and for each the side it is to be on, 1 or -1."""
    signs = rng.choice(np.array([-1.0, 1.0], np.float32), (3, 5))
    return rng.choice(np.array([-1.7, -0.6, 0.4, 0.7, 1.3], np.float32), (3, 5)), signs


def _shares(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Probabilities away from 0 and 1."""
    first, second = rng.uniform(0.3, 0.7, (2, 3, 5)).astype(np.float32)
    return first, second


def _loss(
    name: str,
    value: Pair,
    of_prediction: Pair,
    of_target: Pair | None = None,
    *,
    flops: int = 4,
    inputs: Callable[[np.random.Generator], tuple[FloatArray, FloatArray]] = _normal,
    attrs: Attrs = MappingProxyType({}),
) -> Op:
    """Return the op of a loss; `of_prediction` and `of_target` are its slopes."""
    slopes = (("grad", of_prediction), ("target_grad", of_target))
    rules = tuple(
        _rule(f"{name}_{word}", slope, flops) if slope else None for word, slope in slopes
    )
    return Op(
        name,
        same_shape,
        lambda arrays, attrs: np.asarray(value(arrays[0], arrays[1], attrs), np.float32),
        gradients=rules,
        flops=lambda shapes, out, attrs: flops * size(out),
        example=lambda rng: Example(inputs(rng), attrs),
        placement="fp32",
    )


def _rule(name: str, slope: Pair, flops: int) -> GradientRule:
    op = Op(
        name,
        same_shape,
        lambda arrays, attrs: np.asarray(
            arrays[0] * slope(arrays[1], arrays[-1], attrs), np.float32
        ),
        flops=lambda shapes, out, attrs: (flops + 1) * size(out),
        placement="fp32",
    )

    def rule(b: Builder, node: Node, grad: int) -> int:
        return b.emit(op, grad, *node.inputs, attrs=node.attributes)

    return rule


def _minus(slope: Pair) -> Pair:
    return lambda x, y, attrs: -slope(x, y, attrs)


def _width(attrs: Attrs) -> np.float32:
    return np.float32(attrs.get("width", 1.0))


def _near(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return np.abs(x - y) < _width(attrs)


def _smooth(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    error, width = np.abs(x - y), _width(attrs)
    if not width:
        return error
    return np.where(error < width, _HALF * error * error / width, error - _HALF * width)


def _smooth_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    width = _width(attrs)
    if not width:
        return np.sign(x - y)
    return np.where(_near(x, y, attrs), (x - y) / width, np.sign(x - y))


def _huber(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    error, width = np.abs(x - y), _width(attrs)
    return np.where(error <= width, _HALF * error * error, width * (error - _HALF * width))


def _huber_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    width = _width(attrs)
    return np.clip(x - y, -width, width)


def _log(x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(x), LEAST_LOG)


def _binary(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return (y - _ONE) * _log(_ONE - x) - y * _log(x)


def _binary_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return (x - y) / np.maximum((_ONE - x) * x, np.float32(1e-12))


def _logistic(x: FloatArray) -> Any:
    return np.tanh(x * _HALF) * _HALF + _HALF


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


def _binary_of_target(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    with np.errstate(divide="ignore"):
        return np.log(_ONE - x) - np.log(x)


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


def _margin(attrs: Attrs) -> np.float32:
    return np.float32(attrs.get("margin", 0.0))


def _hinge_embedding(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    far = np.where(y != 1, np.maximum(_margin(attrs) - x, _ZERO), _ZERO)
    return far + np.where(y != -1, x, _ZERO)


def _hinge_embedding_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    far = (y != 1) & (_margin(attrs) - x >= 0)
    return (y != -1).astype(np.float32) - far.astype(np.float32)


def _cosine_embedding(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    apart = np.where(y == -1, np.maximum(x - _margin(attrs), _ZERO), _ZERO)
    return apart + np.where(y == 1, _ONE - x, _ZERO)


def _cosine_embedding_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    apart = (y == -1) & (x >= _margin(attrs))
    return apart.astype(np.float32) - (y == 1).astype(np.float32)


def _margin_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    return -y * _logistic(-x * y)


absolute_error = _loss(
    "absolute_error",
    lambda x, y, attrs: np.abs(x - y),
    lambda x, y, attrs: np.sign(x - y),
    lambda x, y, attrs: np.sign(y - x),
    flops=2,
)
squared_error = _loss(
    "squared_error",
    lambda x, y, attrs: (x - y) * (x - y),
    lambda x, y, attrs: np.float32(2.0) * (x - y),
    lambda x, y, attrs: np.float32(2.0) * (y - x),
    flops=2,
)
smooth_absolute_error = _loss(
    "smooth_absolute_error",
    _smooth,
    _smooth_slope,
    _minus(_smooth_slope),
    attrs=MappingProxyType({"width": 1.0}),
)
"""Half the square over `width` below it, torch's beta, and the absolute error above."""
huber = _loss(
    "huber", _huber, _huber_slope, _minus(_huber_slope), attrs=MappingProxyType({"width": 1.0})
)
"""Half the square up to `width`, torch's delta, and a line above."""
binary_cross_entropy = _loss(
    "binary_cross_entropy", _binary, _binary_slope, _binary_of_target, flops=8, inputs=_shares
)
"""-y log x - (1 - y) log(1 - x) of probabilities, no logarithm below LEAST_LOG."""
binary_cross_entropy_with_logits = _loss(
    "binary_cross_entropy_with_logits",
    _logits,
    lambda x, y, attrs: _logistic(x) - y,
    lambda x, y, attrs: -x,
    flops=12,
)
kl_divergence = _loss(
    "kl_divergence",
    _divergence,
    _divergence_slope,
    _divergence_of_target,
    flops=6,
    inputs=_shares,
)
"""y (log y - x) of logarithms x and probabilities y, or, with `log_target`, of logarithms both."""
soft_margin = _loss(
    "soft_margin", lambda x, y, attrs: -_log_logistic(x * y), _margin_slope, flops=12
)

poisson = _loss(
    "poisson",
    _poisson,
    _poisson_slope,
    flops=8,
    inputs=_shares,
    attrs=MappingProxyType({"log_input": False}),
)
"""exp(x) - y x of a logarithm x, or x - y log(x + epsilon); `full` adds log y! by Stirling."""
hinge_embedding = _loss(
    "hinge_embedding",
    _hinge_embedding,
    _hinge_embedding_slope,
    inputs=_sides,
    attrs=MappingProxyType({"margin": 1.0}),
)
"""A distance x where y is 1, and by how much it falls short of `margin` where y is -1."""
cosine_embedding = _loss(
    "cosine_embedding",
    _cosine_embedding,
    _cosine_embedding_slope,
    inputs=_sides,
    attrs=MappingProxyType({"margin": 1.0}),
)
"""1 - x of a cosine x where y is 1, and by how much it exceeds `margin` where y is -1."""
BY_NAME: Mapping[str, Op] = MappingProxyType(
    {
        "l1": absolute_error,
        "smooth_l1": smooth_absolute_error,
        "huber": huber,
        "binary_cross_entropy": binary_cross_entropy,
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    }
)
"""Losses that a study or `from_torch` can name: means over all elements, as torch has them."""
