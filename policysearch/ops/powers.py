"""Powers whose exponent is a tensor."""

from __future__ import annotations

import math

import numpy as np

from policysearch.graph import Example, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import (
    broadcast,
    gradient_of,
    multiply,
    one_example,
    same_shape,
    ufunc,
)
from policysearch.ops.exponentials import log
from policysearch.ops.masks import masked_fill
from policysearch.ops.unary import positive, scaled, shifted


def _base_gradient(b: Builder, node: Node, grad: int) -> int:
    """grad * (exponent * x^(exponent - 1)), and 0 where the exponent is."""
    x, exponent = node.inputs
    slope = b.emit(multiply, exponent, b.emit(power, x, shifted(b, exponent, -1.0)))
    return _zero_at(b, b.emit(multiply, grad, slope), exponent)


def _exponent_gradient(b: Builder, node: Node, grad: int) -> int:
    """grad * (y * log(x)), and 0 where x is."""
    x, _ = node.inputs
    return b.emit(multiply, grad, _zero_at(b, b.emit(multiply, node.id, b.emit(log, x)), x))


def _zero_at(b: Builder, value: int, factor: int) -> int:
    return b.emit(masked_fill, value, factor, attrs={"value": 0.0, "outside": True})


power: Op = Op(
    "power",
    broadcast,
    ufunc(np.power),
    gradients=(gradient_of(0, _base_gradient), gradient_of(1, _exponent_gradient)),
    flops=lambda inputs, out, attrs: 20 * size(out),
    example=lambda rng: Example((*positive(rng).inputs, one_example(rng).inputs[0])),
    placement="fp32",
)
"""The first to the power of the second, broadcast against each other."""

power_of_number = Op(
    "power_of_number",
    same_shape,
    lambda inputs, attrs: np.power(np.float32(attrs["base"]), inputs[0]),
    gradients=(
        lambda b, node, grad: b.emit(
            multiply, grad, scaled(b, node.id, math.log(node.attributes["base"]))
        ),
    ),
    flops=lambda inputs, out, attrs: 20 * size(out),
    example=lambda rng: Example(one_example(rng).inputs, {"base": 1.7}),
    placement="fp32",
)
"""The constant `base`, above 0, to the power of x."""

sign_of_power = Op(
    "sign_of_power",
    same_shape,
    lambda inputs, attrs: np.power(np.float32(-1.0), inputs[0]),
    gradients=(None,),
    flops=lambda inputs, out, attrs: 20 * size(out),
    example=lambda rng: Example((rng.integers(-3, 4, (3, 5)).astype(np.float32),)),
    placement="fp32",
)
"""-1 to the power of x, NaN where that is not whole; it has no gradient."""
