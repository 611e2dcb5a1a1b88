"""Sines, cosines, tangents and their inverses, and the error function, with torch's gradients."""

from __future__ import annotations

import math

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import add, broadcast, divide, gradient_of, multiply, ufunc
from policysearch.ops.exponentials import exp, pow_constant, rsqrt
from policysearch.ops.gelu import NORMAL
from policysearch.ops.unary import positive as _positive
from policysearch.ops.unary import scaled, shifted, stepwise


def _between_poles(rng: np.random.Generator) -> Example:
    return Example((rng.uniform(-1.0, 1.0, (3, 5)).astype(np.float32),))


def _inside(rng: np.random.Generator) -> Example:
    return Example((rng.uniform(-0.9, 0.9, (3, 5)).astype(np.float32),))


def _square_plus(b: Builder, x: int, amount: float) -> int:
    return shifted(b, b.emit(pow_constant, x, attrs={"exponent": 2.0}), amount)


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
asinh = stepwise(
    "asinh",
    lambda x, attrs: np.arcsinh(x),
    lambda b, x, y, grad: b.emit(multiply, grad, b.emit(rsqrt, _square_plus(b, x, 1.0))),
)
acosh = stepwise(
    "acosh",
    lambda x, attrs: np.arccosh(x),
    lambda b, x, y, grad: b.emit(multiply, grad, b.emit(rsqrt, _square_plus(b, x, -1.0))),
    example=lambda rng: Example((rng.uniform(1.5, 3.0, (3, 5)).astype(np.float32),)),
)
atanh = stepwise(
    "atanh",
    lambda x, attrs: np.arctanh(x),
    lambda b, x, y, grad: b.emit(divide, grad, shifted(b, _negative_square(b, x), 1.0)),
    example=_inside,
)


def _angle_gradient(place: int, sign: float) -> GradientRule:
    """Return the gradient rule of `atan2` by one of its inputs: grad * other * 1/(y^2 + x^2)."""

    def rule(b: Builder, node: Node, grad: int) -> int:
        squares = [b.emit(multiply, i, i) for i in node.inputs]
        over = b.emit(pow_constant, b.emit(add, *squares), attrs={"exponent": -1.0})
        other = node.inputs[1 - place]
        other = other if sign > 0 else scaled(b, other, sign)
        return b.emit(multiply, b.emit(multiply, grad, other), over)

    return gradient_of(place, rule)


atan2 = Op(
    "atan2",
    broadcast,
    ufunc(np.arctan2),
    gradients=(_angle_gradient(0, 1.0), _angle_gradient(1, -1.0)),
    flops=lambda inputs, out, attrs: 20 * size(out),
    example=lambda rng: Example(tuple(x for _ in range(2) for x in _positive(rng).inputs)),
)
"""The angle of the point with the second input along and the first across."""

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

_TAIL = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)


def _erfc(x: FloatArray, attrs: Attrs) -> FloatArray:
    size = np.abs(x)
    t = np.float32(1.0) / (np.float32(0.5) * size + np.float32(1.0))
    power = t * np.float32(_TAIL[0])
    for coefficient in _TAIL[1:-1]:
        power = (power + np.float32(coefficient)) * t
    tail = t * np.exp(power + np.float32(_TAIL[-1]) - size * size)
    return np.where(x < 0, _TWICE - tail, tail)


erfc = stepwise(
    "erfc",
    _erfc,
    lambda b, x, y, grad: b.emit(
        multiply, scaled(b, b.emit(exp, _negative_square(b, x)), -2.0 / math.sqrt(math.pi)), grad
    ),
    flops=12,
)
"""One less the error function, within 1.2e-7 of itself (Press et al., Numerical Recipes, 6.2)."""
