"""GELU in its two forms, with its gradient op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def bind(self, x: FloatArray, out: FloatArray, work: FloatArray) -> Callable[[], FloatArray]:
        """Return the call that sets and returns `out`; it spends `work`, three times as large."""
        near, square, below = (
            np.ndarray(x.shape, np.float32, part, strides=x.strides)
            for part in np.split(work[: 3 * x.size], 3)
        )

        def run() -> FloatArray:
            np.minimum(x, self.farthest, out=near)
            np.maximum(near, -self.farthest, out=near)
            np.multiply(near, near, out=square)
            _polynomial(self.above, square, out)
            _polynomial(self.below, square, below)
            np.multiply(out, near, out=out)
            np.divide(out, below, out=out)
            return out

        return run


def _polynomial(coefficients: Sequence[np.float32], x: FloatArray, out: FloatArray) -> None:
    """Horner's rule."""
    *lower, highest = coefficients
    np.multiply(x, highest, out=out)
    for coefficient in lower[:0:-1]:
        np.add(out, coefficient, out=out)
        np.multiply(out, x, out=out)
    np.add(out, lower[0], out=out)


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


def _inner_tanh(x: FloatArray, out: FloatArray, square: FloatArray) -> None:
    """Set `out` to the tanh that stands for erf(x / sqrt(2)); spend `square`."""
    np.multiply(x, x, out=square)
    np.multiply(square, TANH_CUBIC, out=out)
    np.add(out, _ONE, out=out)
    np.multiply(out, x, out=out)
    np.multiply(out, TANH_SCALE, out=out)
    np.tanh(out, out=out)


def _bind_gelu(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, square = inputs[0], np.ndarray(out.shape, np.float32, work, strides=out.strides)
    normal = NORMAL.bind(x, out, work)

    def run_tanh() -> None:
        _inner_tanh(x, out, square)
        np.add(out, _ONE, out=out)
        np.multiply(out, x, out=out)
        np.multiply(out, _HALF, out=out)

    def run_erf() -> None:
        np.multiply(np.add(normal(), _HALF, out=out), x, out=out)

    return run_tanh if attrs["form"] == "tanh" else run_erf


def _tanh_slope(x: FloatArray, t: FloatArray, u: FloatArray) -> None:
    """Set `u` to x (1 - t^2) sqrt(2/pi) (1 + 3 * 0.044715 x^2) / 2."""
    np.multiply(x, x, out=u)
    np.multiply(u, SLOPE_CUBIC, out=u)
    np.add(u, _ONE, out=u)
    np.multiply(u, x, out=u)
    np.multiply(u, SLOPE_SCALE, out=u)


def _bind_gelu_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """In the tanh form, with t the inner tanh: (1 + t) / 2 and x times the slope of that."""
    grad, x = inputs
    t, u = np.split(work[: 2 * x.size], 2)
    t, u = (np.ndarray(x.shape, np.float32, a, strides=x.strides) for a in (t, u))
    slope = SLOPE.bind(x, out, work)

    def run_tanh() -> None:
        _inner_tanh(x, t, u)
        _tanh_slope(x, t, u)
        np.subtract(u, np.multiply(np.multiply(u, t, out=out), t, out=out), out=u)
        np.add(t, _ONE, out=t)
        np.multiply(t, _HALF, out=t)
        np.add(t, u, out=t)
        np.multiply(grad, t, out=out)

    def run_erf() -> None:
        np.multiply(grad, np.add(slope(), _HALF, out=out), out=out)

    return run_tanh if attrs["form"] == "tanh" else run_erf


def _gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(gelu_grad, grad, node.inputs[0], attrs=node.attributes)


gelu_grad = Op(
    "gelu_grad",
    same_shape,
    _bind_gelu_grad,
    flops=lambda inputs, out, attrs: 20 * size(out),
    work=lambda inputs, out, attrs: 3 * size(out),
)
gelu = Op(
    "gelu",
    same_shape,
    _bind_gelu,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: 15 * size(out),
    example=lambda rng: Example((rng.standard_normal((3, 5)).astype(np.float32),), {"form": "erf"}),
    work=lambda inputs, out, attrs: 3 * size(out),
)
"""x times the normal distribution function of x (Hendrycks and Gimpel, arXiv 1606.08415).

`form` is "erf", which is the definition and torch.nn.GELU's default, or "tanh", the approximation
tanh(sqrt(2/pi) (x + 0.044715 x^3)) for the error function, jax.nn.gelu's default.
"""
