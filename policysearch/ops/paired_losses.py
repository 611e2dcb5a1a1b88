"""How a loss of two tensors, element by element, gets its gradients; the losses of errors.

Source: torch 2.13, `aten/src/ATen/native/Loss.cpp` and `BinaryOpsKernel.cpp`: what each computes in
one kernel is one op here, its gradients are one op for each side.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import same_shape

Pair = Callable[[FloatArray, FloatArray, Attrs], Any]
"""Of the predictions, the targets and the attributes."""

_ZERO, _HALF, _ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)


def _normal(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Two tensors whose elements are apart by neither 0 nor 1, where losses have kinks."""
    first = rng.standard_normal((3, 5)).astype(np.float32)
    apart = rng.choice(np.array([-1.6, -0.6, 0.4, 1.7], np.float32), (3, 5))
    return first, first - apart


def paired_loss(
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
        lambda arrays, attrs: value(arrays[0], arrays[1], attrs).astype(np.float32, copy=False),
        gradients=rules,
        flops=lambda shapes, out, attrs: flops * size(out),
        example=lambda rng: Example(inputs(rng), attrs),
        placement="fp32",
    )


def _rule(name: str, slope: Pair, flops: int) -> GradientRule:
    op = Op(
        name,
        same_shape,
        lambda arrays, attrs: (arrays[0] * slope(arrays[1], arrays[-1], attrs)).astype(
            np.float32, copy=False
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


absolute_error = paired_loss(
    "absolute_error",
    lambda x, y, attrs: np.abs(x - y),
    lambda x, y, attrs: np.sign(x - y),
    lambda x, y, attrs: np.sign(y - x),
    flops=2,
)
squared_error = paired_loss(
    "squared_error",
    lambda x, y, attrs: (x - y) * (x - y),
    lambda x, y, attrs: np.float32(2.0) * (x - y),
    lambda x, y, attrs: np.float32(2.0) * (y - x),
    flops=2,
)
smooth_absolute_error = paired_loss(
    "smooth_absolute_error",
    _smooth,
    _smooth_slope,
    _minus(_smooth_slope),
    attrs=MappingProxyType({"width": 1.0}),
)
"""Half the square over `width` below it, torch's beta, and the absolute error above."""
huber = paired_loss(
    "huber", _huber, _huber_slope, _minus(_huber_slope), attrs=MappingProxyType({"width": 1.0})
)
"""Half the square up to `width`, torch's delta, and a line above."""
