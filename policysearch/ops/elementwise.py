"""Sums, products, differences and quotients of tensors, constant factors and offsets, relu."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import (
    Attrs,
    Example,
    FloatArray,
    Forward,
    GradientRule,
    Node,
    Op,
    Shape,
    size,
)
from policysearch.ops.builder import Builder
from policysearch.ops.source import passed


def same_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape of the first input."""
    return inputs[0]


def broadcast(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape that the inputs are broadcast to, by the rules of numpy and torch."""
    return np.broadcast_shapes(*inputs)


def ufunc(function: Callable[..., FloatArray]) -> Forward:
    """Return the forward of a numpy function of the inputs."""
    return lambda inputs, attrs: function(*inputs)


def _pair(rng: np.random.Generator) -> Example:
    first, second = rng.standard_normal((2, 3, 5)).astype(np.float32)
    return Example((first, second))


def _column(rng: np.random.Generator) -> Example:
    """A tensor and one that is broadcast to it, the second away from zero."""
    first = rng.standard_normal((2, 3, 5)).astype(np.float32)
    return Example((first, rng.uniform(1.0, 2.0, (3, 1)).astype(np.float32)))


def one_example(rng: np.random.Generator) -> Example:
    """Values at least 0.1 away from zero, where relu has its kink."""
    x = rng.standard_normal((3, 5)).astype(np.float32)
    return Example((x + np.copysign(np.float32(0.1), x),))


def _scale_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(scale, grad, attrs=node.attributes)


scale = Op(
    "scale",
    same_shape,
    lambda inputs, attrs: inputs[0] * np.float32(attrs["factor"]),
    gradients=(_scale_gradient,),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 5)).astype(np.float32),), {"factor": 0.3}
    ),
    in_place=(0,),
)
"""x times the constant `factor`, which is rounded to float32."""

shift = Op(
    "shift",
    same_shape,
    lambda inputs, attrs: inputs[0] + np.float32(attrs["amount"]),
    gradients=(lambda b, node, grad: grad,),
    example=lambda rng: Example(one_example(rng).inputs, {"amount": 0.7}),
    in_place=(0,),
)
"""x plus the constant `amount`, which is rounded to float32."""


def _sum_to(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, shape = inputs[0], tuple(attrs["shape"])
    kept = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(axis for axis in range(x.ndim) if kept[axis] == 1 != x.shape[axis])
    return (np.add.reduce(x, axis=axes, keepdims=True) if axes else x).reshape(shape)


sum_to: Op = Op(
    "sum_to",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _sum_to,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 4, 5)).astype(np.float32),), {"shape": (3, 1, 5)}
    ),
    kind="reduce",
)
"""Sum of x over the axes along which `shape` would be broadcast to x: its gradient."""


def gradient_of(place: int, whole: Callable[[Builder, Node, int], int]) -> GradientRule:
    """Return the rule of input `place`: what `whole` emits, summed to the shape of that input."""

    def rule(b: Builder, node: Node, grad: int) -> int:
        result, shape = whole(b, node, grad), b.shape(node.inputs[place])
        return (
            result if b.shape(result) == shape else b.emit(sum_to, result, attrs={"shape": shape})
        )

    return rule


def _negative(b: Builder, node: Node, grad: int) -> int:
    return b.emit(scale, grad, attrs={"factor": -1.0})


add = Op(
    "add",
    broadcast,
    ufunc(np.add),
    gradients=tuple(gradient_of(place, passed) for place in (0, 1)),
    example=_pair,
    in_place=(0, 1),
)
"""Sum of two tensors, broadcast against each other."""

subtract = Op(
    "subtract",
    broadcast,
    ufunc(np.subtract),
    gradients=(gradient_of(0, passed), gradient_of(1, _negative)),
    example=_column,
    in_place=(0, 1),
)
"""First minus second, broadcast against each other."""

multiply: Op = Op(
    "multiply",
    broadcast,
    ufunc(np.multiply),
    gradients=(
        gradient_of(0, lambda b, node, grad: b.emit(multiply, grad, node.inputs[1])),
        gradient_of(1, lambda b, node, grad: b.emit(multiply, grad, node.inputs[0])),
    ),
    example=_pair,
    in_place=(0, 1),
)
"""Product of two tensors, broadcast against each other."""


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

relu_grad = Op(
    "relu_grad",
    same_shape,
    # On the bits, as kernels do it: y is no -0, and a NaN without a sign counts as above 0.
    lambda inputs, attrs: np.where(inputs[1].view(np.int32) > 0, inputs[0], np.float32(0.0)),
    keeps_format=True,
    in_place=(0,),
)
relu = Op(
    "relu",
    same_shape,
    lambda inputs, attrs: np.maximum(inputs[0], np.float32(0.0)),
    gradients=(lambda b, node, grad: b.emit(relu_grad, grad, node.id),),
    example=one_example,
    keeps_format=True,
    in_place=(0,),
)
