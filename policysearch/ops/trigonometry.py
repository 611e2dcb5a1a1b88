"""Sines, cosines, tangents and their inverses, and the error function, with torch's gradients."""

from __future__ import annotations

import math

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import divide, multiply
from policysearch.ops.exponentials import exp, pow_constant, rsqrt
from policysearch.ops.gelu import NORMAL
from policysearch.ops.unary import scaled, shifted, stepwise


def _between_poles(rng: np.random.Generator) -> Example:
    return Example((rng.uniform(-1.0, 1.0, (3, 5)).astype(np.float32),))


def _inside(rng: np.random.Generator) -> Example:
    return Example((rng.uniform(-0.9, 0.9, (3, 5)).astype(np.float32),))


def _negative_square(b: Builder, x: int) -> int:
    return scaled(b, b.emit(pow_constant, x, attrs={"exponent": 2.0}), -1.0)


sin: Op = stepwise(
    "sin",
    lambda x, attrs: np.sin(x),
    lambda b, x, y, grad: b.emit(multiply, grad, b.emit(cos, x)),
)
cos: Op = stepwise(
    "cos",
    lambda x, attrs: np.cos(x),
    lambda b, x, y, grad: b.emit(multiply, grad, scaled(b, b.emit(sin, x), -1.0)),
)
tan = stepwise(
    "tan",
    lambda x, attrs: np.tan(x),
    lambda b, x, y, grad: b.emit(
        multiply, grad, shifted(b, b.emit(pow_constant, y, attrs={"exponent": 2.0}), 1.0)
    ),
    placement="fp32",
    example=_between_poles,
)
atan = stepwise(
    "atan",
    lambda x, attrs: np.arctan(x),
    lambda b, x, y, grad: b.emit(divide, grad, shifted(b, b.emit(multiply, x, x), 1.0)),
)


def _inverse_root(b: Builder, x: int) -> int:
    """Return 1 / sqrt(1 - x^2)."""
    inside = shifted(b, scaled(b, b.emit(multiply, x, x), -1.0), 1.0)
    return b.emit(rsqrt, inside)


asin = stepwise(
    "asin",
    lambda x, attrs: np.arcsin(x),
    lambda b, x, y, grad: b.emit(multiply, grad, _inverse_root(b, x)),
    placement="fp32",
    example=_inside,
)
acos = stepwise(
    "acos",
    lambda x, attrs: np.arccos(x),
    lambda b, x, y, grad: b.emit(multiply, scaled(b, grad, -1.0), _inverse_root(b, x)),
    placement="fp32",
    example=_inside,
)
sinh: Op = stepwise(
    "sinh",
    lambda x, attrs: np.sinh(x),
    lambda b, x, y, grad: b.emit(multiply, grad, b.emit(cosh, x)),
    placement="fp32",
)
cosh: Op = stepwise(
    "cosh",
    lambda x, attrs: np.cosh(x),
    lambda b, x, y, grad: b.emit(multiply, grad, b.emit(sinh, x)),
    placement="fp32",
)

_TWICE, _ROOT = np.float32(2.0), np.float32(math.sqrt(2.0))


def _erf(x: FloatArray, attrs: Attrs) -> FloatArray:
    return NORMAL(x * _ROOT) * _TWICE


erf = stepwise(
    "erf",
    _erf,
    lambda b, x, y, grad: b.emit(
        multiply, scaled(b, b.emit(exp, _negative_square(b, x)), 2.0 / math.sqrt(math.pi)), grad
    ),
    flops=12,
)
"""The error function, within 4e-7 (see `gelu.NORMAL`)."""
