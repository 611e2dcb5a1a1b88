"""Elementwise ops: sums, products and relu, with their gradient ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Bind, Example, FloatArray, GradientRule, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.reduce import summed_to


def same_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape of the first input."""
    return inputs[0]


def _pair(rng: np.random.Generator) -> Example:
    first, second = rng.standard_normal((2, 3, 5)).astype(np.float32)
    return Example((first, second))


def one_example(rng: np.random.Generator) -> Example:
    """Values at least 0.1 away from zero, where relu has its kink."""
    x = rng.standard_normal((3, 5)).astype(np.float32)
    return Example((x + np.copysign(np.float32(0.1), x),))


def ufunc(function: Callable[..., object]) -> Bind:
    """Return the `bind` of a numpy function."""

    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        arguments = tuple(inputs)
        return lambda: function(*arguments, out=out)

    return bind


def broadcast(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape that the inputs are broadcast to, by the rules of numpy and torch."""
    return np.broadcast_shapes(*inputs)


def gradient_of(place: int, made: Callable[[Builder, Node, int], int]) -> GradientRule:
    """Return the rule of input `place`: what `made` emits, summed to the shape of that input."""
    return lambda b, node, grad: summed_to(b, node.inputs[place], made(b, node, grad))


add = Op(
    "add",
    broadcast,
    ufunc(np.add),
    gradients=tuple(gradient_of(place, lambda b, node, grad: grad) for place in (0, 1)),
    example=_pair,
    in_place=(0, 1),
)
"""Sum of two tensors, broadcast against each other."""

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


def _bind_relu(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """A maximum with an array of zeros takes a third of the time of one with a scalar."""
    x, zeros = inputs[0], np.ndarray(out.shape, np.float32, work, strides=out.strides)

    def run() -> None:
        zeros.fill(0.0)
        np.maximum(x, zeros, out=out)

    return run


def _bind_relu_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """g where y > 0 without a boolean array: y is +0 or positive, so -bits has the sign set."""
    grad, y = (array.view(np.int32) for array in inputs)
    masked = out.view(np.int32)
    mask = np.ndarray(y.shape, np.int32, work, strides=y.strides)

    def run() -> None:
        np.negative(y, out=mask)
        np.right_shift(mask, 31, out=mask)
        np.bitwise_and(grad, mask, out=masked)

    return run


relu_grad = Op(
    "relu_grad",
    same_shape,
    _bind_relu_grad,
    keeps_format=True,
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
relu = Op(
    "relu",
    same_shape,
    _bind_relu,
    gradients=(lambda b, node, grad: b.emit(relu_grad, grad, node.id),),
    example=one_example,
    keeps_format=True,
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
