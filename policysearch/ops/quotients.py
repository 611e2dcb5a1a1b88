"""Whole numbers near values, whole quotients and what divisions leave: steps without a slope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import broadcast, gradient_of, multiply
from policysearch.ops.unary import scaled, unary

WAYS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"nearest": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}
)
"""How a value becomes a whole number, by name; halves to the nearest even one."""


def _between_whole(rng: np.random.Generator) -> FloatArray:
    """Values a quarter away from whole numbers, or more."""
    whole = rng.integers(-3, 4, (2, 3, 5)) + rng.choice((0.25, 0.5, 0.75), (2, 3, 5))
    return whole.astype(np.float32)


whole_number, whole_number_grad = unary(
    "round",
    lambda x, attrs: WAYS[attrs["to"]](x),
    lambda x, attrs: np.zeros_like(x),
    attrs=MappingProxyType({"to": "floor"}),
    example=lambda rng: Example((_between_whole(rng),)),
)
"""The whole number that x is taken `to`, a key of WAYS."""


def _divisor(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray | np.float32:
    return inputs[1] if len(inputs) > 1 else np.float32(attrs["number"])


def _quotient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, y = inputs[0], _divisor(inputs, attrs)
    if attrs["to"] == "floor":
        return np.floor_divide(x, y)
    return np.trunc(x / y)


def _remainder(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    function = np.remainder if attrs["to"] == "floor" else np.fmod
    return function(inputs[0], _divisor(inputs, attrs))


def _zeros(b: Builder, node: Node, grad: int) -> int:
    return b.emit(whole_number_grad, grad, node.id, attrs={})


def _of_divisor(b: Builder, node: Node, grad: int) -> int:
    """-grad times the whole quotient."""
    whole = b.emit(whole_quotient, *node.inputs, attrs=node.attributes)
    return b.emit(multiply, scaled(b, grad, -1.0), whole)


def _example(rng: np.random.Generator) -> Example:
    divisor = rng.uniform(1.0, 2.0, (3, 5)).astype(np.float32)
    return Example((_between_whole(rng) * divisor, divisor), {"to": "floor"})


def _op(name: str, forward: Any, *gradients: GradientRule) -> Op:
    return Op(
        name,
        broadcast,
        forward,
        gradients=tuple(gradient_of(place, rule) for place, rule in enumerate(gradients)),
        flops=lambda inputs, out, attrs: 4 * size(out),
        example=_example,
    )


whole_quotient: Op = _op("floor_divide", _quotient, _zeros, _zeros)
"""The whole part of a division, `to` "floor" or "trunc", by a tensor or by `number`."""

remainder = _op("remainder", _remainder, lambda b, node, grad: grad, _of_divisor)
"""What such a division leaves: of the divisor's sign for "floor", of x's for "trunc"."""
