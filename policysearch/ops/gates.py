"""Activations of two operands: one half that gates the other, a slope that is learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.activations import logistic
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import broadcast, gradient_of

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


def _half(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    (whole,) = inputs
    axis = attrs["axis"] % len(whole)
    return (*whole[:axis], whole[axis] // 2, *whole[axis + 1 :])


def _glu(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    value, gate = np.split(inputs[0], 2, attrs["axis"])
    return value * logistic(gate)


def _glu_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, x = inputs
    value, gate = np.split(x, 2, attrs["axis"])
    s = logistic(gate)
    return np.concatenate((grad * s, (_ONE - s) * s * grad * value), attrs["axis"])


glu_grad = Op(
    "glu_grad",
    lambda inputs, attrs: inputs[1],
    _glu_grad,
    flops=lambda inputs, out, attrs: 15 * size(out),
    pointwise=False,
)
glu = Op(
    "glu",
    _half,
    _glu,
    gradients=(lambda b, n, grad: b.emit(glu_grad, grad, n.inputs[0], attrs=n.attributes),),
    flops=lambda inputs, out, attrs: 11 * size(out),
    example=lambda rng: Example((rng.standard_normal((2, 6, 5)).astype(np.float32),), {"axis": 1}),
    pointwise=False,
)
"""The first half of x along `axis` times the logistic function of the second (arXiv 1612.08083)."""


def _prelu(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, weight = inputs
    return np.where(x > 0, x, weight * x)


prelu_grad = Op(
    "prelu_grad",
    broadcast,
    lambda inputs, attrs: np.where(inputs[1] > 0, inputs[0], inputs[2] * inputs[0]),
    flops=lambda inputs, out, attrs: 2 * size(out),
)
prelu_weight_grad = Op(
    "prelu_weight_grad",
    broadcast,
    lambda inputs, attrs: np.where(inputs[1] > 0, _ZERO, inputs[1] * inputs[0]),
    flops=lambda inputs, out, attrs: 2 * size(out),
)
"""The slope's gradient at every place; it is summed, as torch does, once it is rounded."""


def _by_input(b: Builder, node: Node, grad: int) -> int:
    return b.emit(prelu_grad, grad, *node.inputs)


def _by_weight(b: Builder, node: Node, grad: int) -> int:
    return b.emit(prelu_weight_grad, grad, node.inputs[0])


def _slopes(rng: np.random.Generator) -> Example:
    x = rng.standard_normal((2, 3, 5)).astype(np.float32)
    x += np.copysign(np.float32(0.1), x)
    return Example((x, rng.uniform(0.1, 0.5, (3, 1)).astype(np.float32)))


prelu = Op(
    "prelu",
    broadcast,
    _prelu,
    gradients=(gradient_of(0, _by_input), gradient_of(1, _by_weight)),
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=_slopes,
    placement="low",
)
"""x, times the second input where it is not positive (arXiv 1502.01852)."""
