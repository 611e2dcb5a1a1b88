"""Import rules: arithmetic and activations, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import activations, elementwise, exponentials
from policysearch.ops.elementwise import scale
from policysearch.ops.gelu import gelu

Operand = Any
"""A Tensor or a number."""


def paired(t: Tracer, op: Op, a: Tensor, b: Tensor) -> Tensor:
    """Emit `op` on two tensors, in the shape their nodes have where that is the same."""
    if a.shape == b.shape and t.b.shape(a.id) == t.b.shape(b.id) and a.swapped == b.swapped:
        return Tensor(t.b.emit(op, a.id, b.id, source=op.name), a.shape, a.swapped)
    for wide, narrow in ((a, b), (b, a)):
        vector = len(narrow.shape) == 1 and narrow.shape == wide.shape[-1:]
        if vector and t.b.shape(wide.id)[-1:] == narrow.shape and not wide.swapped:
            left, right = (x.id if x is wide else t.full(x) for x in (a, b))
            return Tensor(t.b.emit(op, left, right, source=op.name), wide.shape)
    return t.emit(op, a, b)


def add(t: Tracer, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    if not isinstance(a, Tensor):
        return add(t, b, a)
    if not isinstance(b, Tensor):
        return t.pointwise(elementwise.shift, a, amount=float(b * alpha))
    return paired(t, elementwise.add, a, b if alpha == 1 else multiply(t, b, alpha))


def subtract(t: Tracer, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    if not isinstance(b, Tensor):
        return add(t, a, -b * alpha)
    if not isinstance(a, Tensor):
        return add(t, negative(t, multiply(t, b, alpha)), a)
    return paired(t, elementwise.subtract, a, b if alpha == 1 else multiply(t, b, alpha))


def reverse_subtract(t: Tracer, a: Tensor, b: Operand, alpha: float = 1) -> Tensor:
    return subtract(t, b, a, alpha)


def multiply(t: Tracer, a: Operand, b: Operand) -> Tensor:
    if not isinstance(a, Tensor):
        return multiply(t, b, a)
    if not isinstance(b, Tensor):
        return a if b == 1 else t.pointwise(scale, a, factor=float(b))
    return paired(t, elementwise.multiply, a, b)


def divide(t: Tracer, a: Operand, b: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is not None:
        raise refuse(f"rounding_mode {rounding_mode!r}", "divide without rounding")
    if not isinstance(b, Tensor):
        return t.pointwise(scale, a, factor=1.0 / b)
    if not isinstance(a, Tensor):
        return multiply(t, power(t, b, -1), a)
    return paired(t, elementwise.divide, a, b)


def negative(t: Tracer, a: Tensor) -> Tensor:
    return t.pointwise(scale, a, factor=-1.0)


def power(t: Tracer, a: Tensor, exponent: Operand) -> Tensor:
    if isinstance(exponent, Tensor) or not isinstance(a, Tensor):
        raise refuse("an exponent that is a tensor", "use a number")
    steps: dict[str, Any] = {exponentials.STEPWISE: True, "exponent": float(exponent)}
    return t.pointwise(exponentials.pow_constant, a, **steps)


def plain(op: Op, **attrs: Any) -> Rule:
    """Return the rule of an op of one tensor."""
    return lambda t, x, **options: t.pointwise(op, x, **attrs)


def _gelu(t: Tracer, x: Tensor, approximate: str = "none") -> Tensor:
    return t.pointwise(gelu, x, form="tanh" if approximate == "tanh" else "erf")


def _hardtanh(t: Tracer, x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    return t.pointwise(activations.hardtanh, x, minimum=float(low), maximum=float(high))


def _leaky_relu(t: Tracer, x: Tensor, slope: float = 0.01) -> Tensor:
    return t.pointwise(activations.leaky_relu, x, negative_slope=float(slope))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "add": add,
        "sub": subtract,
        "subtract": subtract,
        "rsub": reverse_subtract,
        "mul": multiply,
        "multiply": multiply,
        "div": divide,
        "true_divide": divide,
        "neg": negative,
        "pow": power,
        "square": lambda t, x: power(t, x, 2),
        "reciprocal": lambda t, x: power(t, x, -1),
        "relu": plain(elementwise.relu),
        "tanh": plain(activations.tanh),
        "sigmoid": plain(activations.sigmoid),
        "silu": plain(activations.silu),
        "hardswish": plain(activations.hardswish),
        "relu6": plain(activations.hardtanh, minimum=0.0, maximum=6.0),
        "hardtanh": _hardtanh,
        "leaky_relu": _leaky_relu,
        "exp": plain(exponentials.exp),
        "sqrt": plain(exponentials.sqrt),
        "rsqrt": plain(exponentials.rsqrt, **{exponentials.STEPWISE: True}),
        "gelu": _gelu,
    }
)
