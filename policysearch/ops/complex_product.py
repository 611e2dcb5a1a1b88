"""Products of complex numbers, each a last axis of extent 2: real part, imaginary part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import broadcast, gradient_of


def _product(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """(a + bi)(c + di), in the real arithmetic of torch's kernel."""
    (a, b), (c, d) = (np.moveaxis(x, -1, 0) for x in inputs)
    if attrs.get("conjugate"):
        d = -d
    return np.stack((a * c - b * d, a * d + b * c), axis=-1)


def _by_other(place: int, other: int) -> GradientRule:
    def whole(b: Builder, node: Node, grad: int) -> int:
        return b.emit(complex_product, grad, node.inputs[other], attrs={"conjugate": True})

    return gradient_of(place, whole)


def _pairs(rng: np.random.Generator) -> Example:
    first = rng.standard_normal((2, 3, 4, 2)).astype(np.float32)
    return Example((first, rng.standard_normal((3, 4, 2)).astype(np.float32)))


complex_product: Op = Op(
    "complex_product",
    broadcast,
    _product,
    gradients=(_by_other(0, 1), _by_other(1, 0)),
    flops=lambda inputs, out, attrs: 3 * size(out),
    example=_pairs,
    pinned=(1,),
    pointwise=False,
)
"""First times second, [..., 2] each; the gradient is that times the conjugate of the other.

torch has complex numbers of float32 alone: the second, a table of rotations, is read as it is.
"""
