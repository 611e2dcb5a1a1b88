"""Differences, quotients and constant offsets of tensors; sums and products are in elementwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op
from policysearch.ops.attention import scale
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import (
    broadcast,
    gradient_of,
    multiply,
    one_example,
    same_shape,
    ufunc,
)


def _column(rng: np.random.Generator) -> Example:
    """A tensor and one that is broadcast to it, the second away from zero."""
    first = rng.standard_normal((2, 3, 5)).astype(np.float32)
    return Example((first, rng.uniform(1.0, 2.0, (3, 1)).astype(np.float32)))


def _negative(b: Builder, node: Node, grad: int) -> int:
    return b.emit(scale, grad, attrs={"factor": -1.0})


subtract = Op(
    "subtract",
    broadcast,
    ufunc(np.subtract),
    gradients=(gradient_of(0, lambda b, node, grad: grad), gradient_of(1, _negative)),
    example=_column,
    in_place=(0, 1),
)
"""First minus second, broadcast against each other."""


def _by_divisor(b: Builder, node: Node, grad: int) -> int:
    """-grad * y / divisor."""
    slope = b.emit(divide, node.id, node.inputs[1])
    return b.emit(multiply, _negative(b, node, grad), slope)


divide: Op = Op(
    "divide",
    broadcast,
    ufunc(np.divide),
    gradients=(
        gradient_of(0, lambda b, node, grad: b.emit(divide, grad, node.inputs[1])),
        gradient_of(1, _by_divisor),
    ),
    example=_column,
    in_place=(0, 1),
)
"""First divided by second, broadcast against each other."""


def _bind_shift(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, amount = inputs[0], np.float32(attrs["amount"])
    return lambda: np.add(x, amount, out=out)


shift = Op(
    "shift",
    same_shape,
    _bind_shift,
    gradients=(lambda b, node, grad: grad,),
    example=lambda rng: Example(one_example(rng).inputs, {"amount": 0.7}),
    in_place=(0,),
)
"""x plus the constant `amount`, which is rounded to float32."""
