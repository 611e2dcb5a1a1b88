"""GELU in its two forms, with its gradient op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Builder, Example, FloatArray, Node, Op, size
from policysearch.ops.elementwise import same_shape

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
TANH_SCALE = np.float32(np.sqrt(2.0 / np.pi))
TANH_CUBIC = np.float32(0.044715)
SLOPE_CUBIC, SLOPE_SCALE = 3 * TANH_CUBIC, _HALF * TANH_SCALE
DENSITY = np.float32(1.0 / np.sqrt(2.0 * np.pi))

FARTHEST = np.float32(36.0)
ERF = tuple(
    np.float32(c)
    for c in (
        *(0.7978846430778503, 0.03633515536785126, -3.608623592299409e-05),
        *(-5.290600165608339e-05, 3.1573904379911255e-06, 1.249460357399812e-08),
        *(-1.2528019510682498e-08, 7.64761753924148e-10, -2.0495214900217995e-11),
        2.125497992671796e-13,
    )
)
"""atanh(erf(x / sqrt(2))) / x as a polynomial of x^2 up to FARTHEST, where float32's erf is 1.

Fitted to mpmath's erf on 2,000 points so that the largest error of erf is least: 1.0e-7 in
float32, where a unit in the last place of numbers just below 1 is 6e-8.
"""


def _inner(form: str, x: FloatArray, out: FloatArray, square: FloatArray) -> None:
    """Set `out` to erf(x / sqrt(2)), or to the tanh that stands for it; spend `square`."""
    np.multiply(x, x, out=square)
    if form == "tanh":
        np.multiply(square, TANH_CUBIC, out=out)
        np.add(out, _ONE, out=out)
        np.multiply(out, x, out=out)
        np.multiply(out, TANH_SCALE, out=out)
    else:
        np.minimum(square, FARTHEST, out=square)
        out.fill(ERF[-1])
        for coefficient in ERF[-2::-1]:
            np.multiply(out, square, out=out)
            np.add(out, coefficient, out=out)
        np.multiply(out, x, out=out)
    np.tanh(out, out=out)


def _bind_gelu(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, form = inputs[0], attrs["form"]
    square = np.ndarray(x.shape, np.float32, work, strides=x.strides)

    def run() -> None:
        _inner(form, x, out, square)
        np.add(out, _ONE, out=out)
        np.multiply(out, x, out=out)
        np.multiply(out, _HALF, out=out)

    return run


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
    """With t the inner tanh: (1 + t) / 2 and x times the slope of that."""
    grad, x = inputs
    form = attrs["form"]
    t, u = np.split(work[: 2 * x.size], 2)
    t, u = (np.ndarray(x.shape, np.float32, a, strides=x.strides) for a in (t, u))

    def run() -> None:
        _inner(form, x, t, u)
        if form == "tanh":
            _tanh_slope(x, t, u)
            np.subtract(u, np.multiply(np.multiply(u, t, out=out), t, out=out), out=u)
        else:
            np.multiply(x, x, out=u)
            np.multiply(u, -_HALF, out=u)
            np.exp(u, out=u)
            np.multiply(u, DENSITY, out=u)
            np.multiply(u, x, out=u)
        np.add(t, _ONE, out=t)
        np.multiply(t, _HALF, out=t)
        np.add(t, u, out=t)
        np.multiply(grad, t, out=out)

    return run


def _gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(gelu_grad, grad, node.inputs[0], attrs=node.attributes)


gelu_grad = Op(
    "gelu_grad",
    same_shape,
    _bind_gelu_grad,
    flops=lambda inputs, out, attrs: 20 * size(out),
    work=lambda inputs, out, attrs: 2 * size(out),
)
gelu = Op(
    "gelu",
    same_shape,
    _bind_gelu,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: 15 * size(out),
    example=lambda rng: Example((rng.standard_normal((3, 5)).astype(np.float32),), {"form": "erf"}),
    work=lambda inputs, out, attrs: size(out),
)
"""x times the normal distribution function of x (Hendrycks and Gimpel, arXiv 1606.08415).

`form` is "erf", which is the definition and torch.nn.GELU's default, or "tanh", the approximation
tanh(sqrt(2/pi) (x + 0.044715 x^3)) for the error function, jax.nn.gelu's default.
"""
