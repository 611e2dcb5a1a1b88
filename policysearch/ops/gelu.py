"""GELU in its two forms, with its gradient op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import same_shape

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
TANH_SCALE = np.float32(np.sqrt(2.0 / np.pi))
TANH_CUBIC = np.float32(0.044715)
SLOPE_CUBIC, SLOPE_SCALE = 3 * TANH_CUBIC, _HALF * TANH_SCALE


@dataclass(frozen=True)
class OddRatio:
    """x times a ratio of two polynomials of x^2, for |x| up to `farthest` and its value from there.

    Coefficients are of rising powers; the first `below` is 1.
    """

    farthest: np.float32
    above: tuple[np.float32, ...]
    below: tuple[np.float32, ...]

    def __call__(self, x: FloatArray) -> FloatArray:
        near = np.maximum(np.minimum(x, self.farthest), -self.farthest)
        square = near * near
        return _polynomial(self.above, square) * near / _polynomial(self.below, square)


def _polynomial(coefficients: Sequence[np.float32], x: FloatArray) -> FloatArray:
    """Horner's rule."""
    *lower, highest = coefficients
    value = x * highest
    for coefficient in lower[:0:-1]:
        value = (value + coefficient) * x
    return value + lower[0]


def _ratio(farthest: float, above: Sequence[float], below: Sequence[float]) -> OddRatio:
    return OddRatio(
        np.float32(farthest), tuple(map(np.float32, above)), tuple(map(np.float32, below))
    )


NORMAL = _ratio(
    5.5,
    (
        *(0.398942232131958, 0.033852752298116684, 0.004677267279475927),
        *(0.0001688267948338762, 6.3521288211632054e-06, 2.2749345518491282e-08),
    ),
    (
        *(1.0, 0.2515221834182739, 0.02864593267440796, 0.0018844511359930038),
        *(7.364787597907707e-05, 1.197504161609686e-06),
    ),
)
"""The normal distribution function less 1/2, which is erf(x / sqrt(2)) / 2: within 1.8e-7.

Both ratios are fits of the least largest error, and their end is 1/2 exactly in float32.
"""

SLOPE = _ratio(
    6.0,
    (
        *(0.7978847622871399, -0.04151689633727074, 0.014529995620250702),
        *(-0.0001481575018260628, 3.300834578112699e-05, -1.0087009627568477e-07),
        *(2.7850077799485007e-09, -1.53575121369931e-11),
    ),
    (
        *(1.0, 0.2813020646572113, 0.036971934139728546, 0.002952298615127802),
        *(0.00015020908904261887, 5.556726591748884e-06),
    ),
)
"""The derivative of x times the normal distribution function, less 1/2: within 2.5e-7."""


def _tanh(x: FloatArray) -> FloatArray:
    """The tanh that stands for erf(x / sqrt(2)): of sqrt(2/pi) (x + 0.044715 x^3)."""
    return np.tanh((x * x * TANH_CUBIC + _ONE) * x * TANH_SCALE)


def _gelu(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (x,) = inputs
    if attrs["form"] == "tanh":
        return (_tanh(x) + _ONE) * x * _HALF
    return (NORMAL(x) + _HALF) * x


def _gelu_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """In the tanh form, with t the inner tanh: (1 + t) / 2 and x times the slope of that."""
    grad, x = inputs
    if attrs["form"] != "tanh":
        return grad * (SLOPE(x) + _HALF)
    t = _tanh(x)
    u = (x * x * SLOPE_CUBIC + _ONE) * x * SLOPE_SCALE  # x sqrt(2/pi) (1 + 3 * 0.044715 x^2) / 2
    return grad * ((t + _ONE) * _HALF + (u - u * t * t))


def _gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(gelu_grad, grad, node.inputs[0], attrs=node.attributes)


gelu_grad = Op(
    "gelu_grad",
    same_shape,
    _gelu_grad,
    flops=lambda inputs, out, attrs: 20 * size(out),
)
gelu = Op(
    "gelu",
    same_shape,
    _gelu,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: 15 * size(out),
    example=lambda rng: Example((rng.standard_normal((3, 5)).astype(np.float32),), {"form": "erf"}),
)
"""x times the normal distribution function of x (Hendrycks and Gimpel, arXiv 1606.08415).

`form` is "erf", which is the definition and torch.nn.GELU's default, or "tanh", the approximation
tanh(sqrt(2/pi) (x + 0.044715 x^3)) for the error function, jax.nn.gelu's default.
"""
