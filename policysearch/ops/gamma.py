"""The logarithm of the gamma function and its slopes, as likelihoods of counts and of ratios have.

By their asymptotic series, in float64, at arguments that recurrence lifts to LEAST and above
(Abramowitz and Stegun 6.1.15, 6.1.41, 6.3.18, 6.4.12).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, FloatArray, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import multiply, same_shape
from policysearch.ops.unary import Function, positive, stepwise

Doubles = NDArray[np.float64]

LEAST = 10.0
"""From here on few terms of the series are exact to 1e-15."""

BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66)
"""B2, B4, ..., B10."""


def _lifted_argument(x: Doubles, step: Callable[[Doubles], Doubles]) -> tuple[Doubles, Doubles]:
    """Return x raised by 1 until it is LEAST, and the sum of `step` of what it was on its way."""
    total = np.zeros_like(x)
    for _ in range(int(LEAST)):
        low = x < LEAST
        total += np.where(low, step(np.where(low, x, LEAST)), 0.0)
        x = x + low
    return x, total


def _log_gamma(x: Doubles) -> Doubles:
    z, below = _lifted_argument(x, np.log)
    terms = (b / (2 * n * (2 * n - 1) * z ** (2 * n - 1)) for n, b in enumerate(BERNOULLI, 1))
    return (z - 0.5) * np.log(z) - z + 0.5 * math.log(2 * math.pi) + sum(terms) - below


def _digamma(x: Doubles) -> Doubles:
    z, below = _lifted_argument(x, np.reciprocal)
    series = sum(b / (2 * n * z ** (2 * n)) for n, b in enumerate(BERNOULLI, 1))
    return np.log(z) - 0.5 / z - series - below


def _trigamma(x: Doubles) -> Doubles:
    z, below = _lifted_argument(x, lambda y: y**-2.0)
    series = sum(b / z ** (2 * n + 1) for n, b in enumerate(BERNOULLI, 1))
    return 1 / z + 0.5 / z**2 + series + below


def _reflection(
    of: Callable[[Doubles], Doubles], other: Callable[[Doubles, Doubles], Doubles]
) -> Function:
    """Return the function of any x; `other` is that of x below 0.5, given it at 1 - x."""

    def function(x32: FloatArray, attrs: Attrs) -> FloatArray:
        x = x32.astype(np.float64)
        low = x < 0.5
        upper = of(np.where(low, 1.0 - x, x))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(low, other(x, upper), upper).astype(np.float32)

    return function


def _tangent(x: Doubles) -> Doubles:
    return np.pi / np.tan(np.pi * x)


_slope_of_slope = _reflection(_trigamma, lambda x, y: (np.pi / np.sin(np.pi * x)) ** 2 - y)

polygamma = Op(
    "polygamma",
    same_shape,
    lambda inputs, attrs: _slope_of_slope(inputs[0], attrs),
    flops=lambda inputs, out, attrs: 40 * size(out),
)
"""The second derivative of `lgamma`."""


def _by_trigamma(b: Builder, x: int, y: int, grad: int) -> int:
    return b.emit(multiply, grad, b.emit(polygamma, x))


digamma = stepwise(
    "digamma",
    _reflection(_digamma, lambda x, y: y - _tangent(x)),
    _by_trigamma,
    flops=40,
    example=positive,
)
"""The derivative of `lgamma`."""

lgamma = stepwise(
    "lgamma",
    _reflection(_log_gamma, lambda x, y: math.log(math.pi) - np.log(np.abs(np.sin(np.pi * x))) - y),
    lambda b, x, y, grad: b.emit(multiply, grad, b.emit(digamma, x)),
    flops=40,
    example=positive,
)
"""log |gamma(x)|."""
