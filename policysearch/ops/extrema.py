"""The larger and the smaller of two, clamping, absolute values and signs.

Each hands its gradient on as torch does where two values meet: torchgen's `derivatives.yaml`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import broadcast, gradient_of, one_example, same_shape, ufunc
from policysearch.ops.unary import unary

_ZERO, _HALF = np.float32(0.0), np.float32(0.5)

FIRST = "first"
"""The attribute of an extremum whose first value has all of the gradient where both are equal."""


def _share(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The gradient where the value of this side was taken, half of it where both are equal.

    Of gradient, value and the other value. In torch both have the gradient where one is NaN.
    """
    grad, own, other = inputs
    lost = own < other if attrs["largest"] else own > other
    tied = grad * _HALF if attrs.get("kept") is None else grad if attrs["kept"] else grad * _ZERO
    return np.where(lost, _ZERO, np.where(own == other, tied, grad))


extremum_grad = Op(
    "extremum_grad", broadcast, _share, flops=lambda inputs, out, attrs: 3 * size(out)
)


def _side(place: int) -> GradientRule:
    def whole(b: Builder, node: Node, grad: int) -> int:
        attrs = {"largest": node.op.name == "maximum"}
        if node.attributes.get(FIRST):
            attrs["kept"] = place == 0
        own, other = node.inputs[place], node.inputs[1 - place]
        return b.emit(extremum_grad, grad, own, other, attrs=attrs)

    return gradient_of(place, whole)


def _apart(rng: np.random.Generator) -> Example:
    """Values of which none is within 0.1 of the other."""
    first = rng.standard_normal((2, 3, 5)).astype(np.float32)
    away = rng.uniform(0.1, 1.0, first.shape) * rng.choice((-1.0, 1.0), first.shape)
    return Example((first, (first + away).astype(np.float32)))


def _extremum(name: str, function: Callable[..., FloatArray]) -> Op:
    return Op(
        name,
        broadcast,
        ufunc(function),
        gradients=(_side(0), _side(1)),
        example=_apart,
        keeps_format=True,
        in_place=(0, 1),
    )


maximum = _extremum("maximum", np.maximum)
"""The larger of two, broadcast against each other; equal ones share the gradient."""

minimum = _extremum("minimum", np.minimum)
"""The smaller of two, as `maximum`."""


def _clamp(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    low, high = np.float32(attrs["minimum"]), np.float32(attrs["maximum"])
    return np.minimum(np.maximum(inputs[0], low), high)


clamp_grad = Op(
    "clamp_grad",
    same_shape,
    lambda inputs, attrs: np.where(inputs[1] == inputs[2], inputs[0], _ZERO),
    keeps_format=True,
    in_place=(0,),
)
"""The gradient where the value is what it was: torch compares with ends in the tensor's format."""

clamp = Op(
    "clamp",
    same_shape,
    _clamp,
    gradients=(lambda b, node, grad: b.emit(clamp_grad, grad, node.inputs[0], node.id),),
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example(one_example(rng).inputs, {"minimum": -0.09, "maximum": 6.0}),
    in_place=(0,),
)
"""x between `minimum` and `maximum`, which have the gradient too, unlike those of `hardtanh`."""

absolute, absolute_grad = unary(
    "abs", lambda x, attrs: np.abs(x), lambda x, attrs: np.sign(x), flops=1
)
sign, sign_grad = unary("sign", lambda x, attrs: np.sign(x), lambda x, attrs: np.zeros_like(x))
"""-1, 0 or 1, without a gradient."""

nan_to_num, nan_to_num_grad = unary(
    "nan_to_num",
    lambda x, attrs: np.nan_to_num(x, True, *(attrs[key] for key in ("nan", "above", "below"))),
    lambda x, attrs: np.isfinite(x).astype(np.float32),
    attrs=MappingProxyType({"nan": 0.0, "above": 1e30, "below": -1e30}),
)
"""x with the constants `nan`, `above` and `below` for what is none, infinite, or below all."""
