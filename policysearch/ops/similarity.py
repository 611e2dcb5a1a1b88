"""Distances and cosines of the rows of two tensors, over their last axis.

Source: torch 2.13, `aten/src/ATen/native/Distance.cpp` and `Loss.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence

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

ZERO, ONE = np.float32(0.0), np.float32(1.0)
SHIFT = "shift"
"""The attribute of a cosine whose squared lengths grow by it: else none is below `epsilon`."""


def _rows_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0][:-1]


def _pair(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Rows that differ in no element by less than 0.3."""
    first = rng.standard_normal((3, 4, 5)).astype(np.float32)
    return first, first - rng.choice(np.array([-1.6, -0.6, 0.4, 1.7], np.float32), (3, 4, 5))


def _differences(x: FloatArray, y: FloatArray, attrs: Attrs) -> FloatArray:
    return x - y + np.float32(attrs.get("epsilon", 1e-6))


def _length(x: FloatArray, order: float) -> FloatArray:
    """Return the norm of each row, its axis kept."""
    if order == 2.0:
        return np.sqrt(np.add.reduce(x * x, axis=-1, keepdims=True))
    if order == 1.0:
        return np.add.reduce(np.abs(x), axis=-1, keepdims=True)
    powers = np.power(np.abs(x), np.float32(order))
    return np.power(np.add.reduce(powers, axis=-1, keepdims=True), np.float32(1.0 / order))


def _distance(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, y = inputs
    return _length(_differences(x, y, attrs), attrs.get("order", 2.0))[..., 0]


def _distance_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, x, y = inputs
    error, order = _differences(x, y, attrs), attrs.get("order", 2.0)
    if order == 1.0:
        slope = np.sign(error)
    else:
        length = _length(error, order)
        share = np.abs(error) / np.where(length == 0, ONE, length)
        slope = np.sign(error) * np.power(share, np.float32(order - 1.0))
        slope = np.where(length == 0, ZERO, slope)
    return slope * (grad * np.float32(attrs["sign"]))[..., None]


def _normal(x: FloatArray, attrs: Attrs) -> tuple[FloatArray, FloatArray]:
    """Return the rows over their lengths, and the lengths."""
    if SHIFT in attrs:
        squares = np.add.reduce(x * x, axis=-1, keepdims=True)
        length: FloatArray = np.sqrt(squares + np.float32(attrs[SHIFT]))
    else:
        length = np.maximum(_length(x, 2.0), np.float32(attrs.get("epsilon", 1e-8)))
    return x / length, length


def _cosine(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (x, _), (y, _) = (_normal(rows, attrs) for rows in inputs)
    total: FloatArray = np.add.reduce(x * y, axis=-1)
    return total


def _cosine_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """(v - u cos) / |x| of the rows over their lengths, u of the side x it is the gradient of."""
    grad, *sides = inputs
    own, other = sides if attrs["sign"] > 0 else reversed(sides)
    (u, length), (v, _) = _normal(own, attrs), _normal(other, attrs)
    along = u * np.add.reduce(u * v, axis=-1, keepdims=True)
    return (v - along) / length * grad[..., None]


def _op(name: str, forward: Forward, slope: Forward, attrs: Attrs) -> Op:
    """Return the op of two tensors; `slope` takes the attribute `sign`, -1 for the second's."""
    grad_op = Op(
        f"{name}_grad",
        lambda inputs, attrs: inputs[1],
        slope,
        flops=lambda inputs, out, attrs: 8 * size(out),
        kind="reduce",
        placement="fp32",
    )

    def rule(sign: int) -> GradientRule:
        def emitted(b: Builder, node: Node, grad: int) -> int:
            return b.emit(grad_op, grad, *node.inputs, attrs={**node.attributes, "sign": sign})

        return emitted

    return Op(
        name,
        _rows_shape,
        forward,
        gradients=(rule(1), rule(-1)),
        flops=lambda inputs, out, attrs: 6 * size(inputs[0]),
        example=lambda rng: Example(_pair(rng), attrs),
        kind="reduce",
        placement="fp32",
    )


pairwise_distance = _op("pairwise_distance", _distance, _distance_grad, {"order": 3.0})
"""The norm of x - y + epsilon of each row, the 2-norm unless `order` says another."""

cosine_similarity = _op("cosine_similarity", _cosine, _cosine_grad, {})
"""x y / (|x| |y|) of each row, no length below `epsilon`."""
