"""Ops that a mask fed from outside steers: dropout, masked_fill, where.

Masks are read as they are in float32 and broadcast to what they mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import broadcast, gradient_of, same_shape, ufunc


def _mask(rng: np.random.Generator, *shape: int) -> FloatArray:
    return (rng.random(shape) < 0.5).astype(np.float32)


def _dropout_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(dropout, grad, node.inputs[1], attrs=node.attributes)


dropout: Op = Op(
    "dropout",
    same_shape,
    ufunc(np.multiply),
    gradients=(_dropout_gradient, None),
    example=lambda rng: Example(
        (rng.standard_normal((3, 5)).astype(np.float32), 2.0 * _mask(rng, 3, 5)), {"p": 0.5}
    ),
    in_place=(0,),
    pinned=(1,),
)
"""x times the mask: 0 with probability `p`, else 1 / (1 - p) (arXiv 1207.0580, as in torch).

Who feeds the step draws the mask.
"""


def _masked_fill(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, mask = inputs
    filled = mask == 0 if attrs.get("outside") else mask != 0
    return np.where(filled, np.float32(attrs["value"]), x)


def _masked_gradient(b: Builder, grad: int, mask: int, *, outside: bool) -> int:
    return b.emit(masked_fill, grad, mask, attrs={"value": 0.0, "outside": outside})


masked_fill: Op = Op(
    "masked_fill",
    same_shape,
    _masked_fill,
    gradients=(
        lambda b, node, grad: _masked_gradient(
            b, grad, node.inputs[1], outside=bool(node.attributes.get("outside"))
        ),
        None,
    ),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 5)).astype(np.float32), _mask(rng, 3, 5)), {"value": -2.5}
    ),
    in_place=(0,),
    pinned=(1,),
)
"""x, but the constant `value` where the mask is not 0, or, with `outside`, where it is 0."""


def _where(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    mask, first, second = inputs
    return np.where(mask != 0, first, second)


where = Op(
    "where",
    broadcast,
    _where,
    gradients=(
        None,
        gradient_of(
            1, lambda b, node, grad: _masked_gradient(b, grad, node.inputs[0], outside=True)
        ),
        gradient_of(
            2, lambda b, node, grad: _masked_gradient(b, grad, node.inputs[0], outside=False)
        ),
    ),
    example=lambda rng: Example(
        (_mask(rng, 3, 1), *rng.standard_normal((2, 3, 5)).astype(np.float32))
    ),
    keeps_format=True,
    pinned=(0,),
)
"""The first value where the mask is not 0, else the second."""
