"""Sums of a tensor and a product, a quotient, or a share of a difference: one rounding each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import (
    broadcast,
    divide,
    gradient_of,
    multiply,
    same_shape,
    subtract,
)
from policysearch.ops.source import passed
from policysearch.ops.unary import scaled, shifted

_HALF, _ONE = np.float32(0.5), np.float32(1.0)


def _triple(rng: np.random.Generator) -> Example:
    first, second = rng.standard_normal((2, 2, 3, 5)).astype(np.float32)
    return Example(
        (first, second, rng.uniform(1.0, 2.0, (3, 1)).astype(np.float32)), {"value": 0.7}
    )


def _by_value(b: Builder, x: int, node: Node) -> int:
    """x times the constant `value`, where it is not 1."""
    value = node.attributes["value"]
    return x if value == 1.0 else scaled(b, x, value)


def _add_product(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, first, second = inputs
    return x + first * second * np.float32(attrs["value"])


add_product = Op(
    "addcmul",
    broadcast,
    _add_product,
    gradients=(
        gradient_of(0, passed),
        gradient_of(1, lambda b, n, grad: b.emit(multiply, grad, _by_value(b, n.inputs[2], n))),
        gradient_of(2, lambda b, n, grad: b.emit(multiply, grad, _by_value(b, n.inputs[1], n))),
    ),
    flops=lambda inputs, out, attrs: 3 * size(out),
    example=_triple,
)
"""x plus the constant `value` times a product."""


def _add_quotient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, first, second = inputs
    return x + first * np.float32(attrs["value"]) / second


number_quotient = Op(
    "number_quotient",
    same_shape,
    lambda inputs, attrs: np.float32(attrs["number"]) / inputs[0],
)
"""The constant `number` divided by x."""


def _of_numerator(b: Builder, node: Node, grad: int) -> int:
    """grad * (value / divisor)."""
    slope = b.emit(number_quotient, node.inputs[2], attrs={"number": node.attributes["value"]})
    return b.emit(multiply, grad, slope)


def _of_divisor(b: Builder, node: Node, grad: int) -> int:
    """-grad * (value * numerator / divisor^2)."""
    _, numerator, divisor = node.inputs
    square = b.emit(multiply, divisor, divisor)
    slope = b.emit(divide, _by_value(b, numerator, node), square)
    return b.emit(multiply, scaled(b, grad, -1.0), slope)


add_quotient = Op(
    "addcdiv",
    broadcast,
    _add_quotient,
    gradients=(gradient_of(0, passed), gradient_of(1, _of_numerator), gradient_of(2, _of_divisor)),
    flops=lambda inputs, out, attrs: 3 * size(out),
    example=_triple,
)
"""x plus the constant `value` times a quotient."""


def _lerp(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    start, end = inputs[:2]
    weight = inputs[2] if len(inputs) > 2 else np.float32(attrs["weight"])
    way = end - start
    return np.where(np.abs(weight) < _HALF, start + weight * way, end - way * (_ONE - weight))


def _share_of_start(b: Builder, node: Node, grad: int) -> int:
    if len(node.inputs) < 3:
        return scaled(b, grad, 1.0 - node.attributes["weight"])
    return b.emit(multiply, grad, shifted(b, scaled(b, node.inputs[2], -1.0), 1.0))


def _share_of_end(b: Builder, node: Node, grad: int) -> int:
    if len(node.inputs) < 3:
        return scaled(b, grad, node.attributes["weight"])
    return b.emit(multiply, grad, node.inputs[2])


def _of_weight(b: Builder, node: Node, grad: int) -> int:
    start, end, _ = node.inputs
    return b.emit(multiply, grad, b.emit(subtract, end, start))


interpolate = Op(
    "lerp",
    broadcast,
    _lerp,
    gradients=(
        gradient_of(0, _share_of_start),
        gradient_of(1, _share_of_end),
        gradient_of(2, _of_weight),
    ),
    flops=lambda inputs, out, attrs: 4 * size(out),
    example=_triple,
)
"""start + weight * (end - start), the weight a third tensor or the constant `weight`."""


def sum_with_share(share: float) -> Op:
    """Return the op of x + share * y; it is listed as the sum that it is."""
    factor = np.float32(share)
    return Op(
        "sum_with_share",
        broadcast,
        lambda inputs, attrs: inputs[0] + inputs[1] * factor,
        gradients=(gradient_of(0, passed), gradient_of(1, lambda b, n, g: scaled(b, g, share))),
        flops=lambda inputs, out, attrs: 2 * size(out),
    )
