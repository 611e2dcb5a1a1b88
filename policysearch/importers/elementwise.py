"""Import rules: arithmetic and functions, element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Op
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import (
    elementwise,
    exponentials,
    extrema,
    gamma,
    powers,
    quotients,
    trigonometry,
    weighted_sums,
)
from policysearch.ops.elementwise import scale
from policysearch.ops.gather import STEPS
from policysearch.ops.weighted_sums import sum_with_share

Operand = Any
"""A Tensor or a number."""


def _pair(t: Tracer, op: Op, a: Tensor, b: Tensor, **attrs: Any) -> Tensor:
    """Emit `op` on two tensors, in the shape their nodes have where that is the same."""
    if a.shape == b.shape and t.b.shape(a.id) == t.b.shape(b.id) and a.swapped == b.swapped:
        node = t.b.emit(op, a.id, b.id, attrs=attrs, source=op.name)
        return Tensor(node, a.shape, a.swapped)
    for wide, narrow in ((a, b), (b, a)):
        vector = len(narrow.shape) == 1 and narrow.shape == wide.shape[-1:]
        if vector and t.b.shape(wide.id)[-1:] == narrow.shape and not wide.swapped:
            left, right = (x.id if x is wide else t.full(x) for x in (a, b))
            node = t.b.emit(op, left, right, attrs=attrs, source=op.name)
            return Tensor(node, wide.shape)
    return t.emit(op, a, b, **attrs)


def add(t: Tracer, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    if not isinstance(a, Tensor):
        return add(t, b, a)
    if not isinstance(b, Tensor):
        return t.pointwise(elementwise.shift, a, amount=float(b * alpha))
    if alpha != 1:
        return t.emit(sum_with_share(float(alpha)), a, b, source="add")
    return _pair(t, elementwise.add, a, b)


def subtract(t: Tracer, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    if not isinstance(b, Tensor):
        return add(t, a, -b * alpha)
    if not isinstance(a, Tensor):
        return add(t, negative(t, multiply(t, b, alpha)), a)
    if alpha != 1:
        return t.emit(sum_with_share(-float(alpha)), a, b, source="subtract")
    return _pair(t, elementwise.subtract, a, b)


def reverse_subtract(t: Tracer, a: Tensor, b: Operand, alpha: float = 1) -> Tensor:
    return subtract(t, b, a, alpha)


def multiply(t: Tracer, a: Operand, b: Operand) -> Tensor:
    if not isinstance(a, Tensor):
        return multiply(t, b, a)
    if not isinstance(b, Tensor):
        return a if b == 1 else t.pointwise(scale, a, factor=float(b))
    return _pair(t, elementwise.multiply, a, b)


def divide(t: Tracer, a: Operand, b: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is not None:
        return _quotient(t, a, b, quotients.whole_quotient, rounding_mode)
    if not isinstance(b, Tensor):
        return t.pointwise(scale, a, factor=1.0 / b)
    if not isinstance(a, Tensor):
        return multiply(t, power(t, b, -1), a)
    return _pair(t, elementwise.divide, a, b)


def _quotient(t: Tracer, a: Operand, b: Operand, op: Op, to: str) -> Tensor:
    if not isinstance(a, Tensor):
        a = add(t, multiply(t, b, 0.0), a)
    if not isinstance(b, Tensor):
        return t.pointwise(op, a, number=float(b), to=to)
    return _pair(t, op, a, b, to=to)


def negative(t: Tracer, a: Tensor) -> Tensor:
    return t.pointwise(scale, a, factor=-1.0)


def power(t: Tracer, a: Operand, exponent: Operand) -> Tensor:
    if isinstance(a, Tensor) and isinstance(exponent, Tensor):
        return _pair(t, powers.power, a, exponent)
    if isinstance(exponent, Tensor):
        if a == -1 and not t.is_trained(
            exponent, by_gradients=True
        ):  # torch's gradient of it is NaN
            return t.pointwise(powers.sign_of_power, exponent)
        if a <= 0:
            raise refuse(f"powers of {a}", "use a number above 0")
        return t.pointwise(powers.power_of_number, exponent, base=float(a))
    steps: dict[str, Any] = {STEPS: True, "exponent": float(exponent)}
    return t.pointwise(exponentials.pow_constant, a, **steps)


def pair(op: Op, **attrs: Any) -> Rule:
    """Return the rule of an op of two tensors."""
    return lambda t, a, b: _pair(t, op, a, b, **attrs)


def clamp(t: Tracer, x: Tensor, min: Operand = None, max: Operand = None) -> Tensor:
    """x between two ends, numbers or tensors, which have the gradient where x is beyond them."""
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        # a maximum and a minimum of whole values: that they are two nodes rounds nothing
        for end, op in ((min, extrema.maximum), (max, extrema.minimum)):
            if isinstance(end, Tensor):
                attrs: dict[str, Any] = {extrema.FIRST: True}
                x = _pair(t, op, x, end, **attrs)
        return x
    ends = (-math.inf if min is None else min), (math.inf if max is None else max)
    return t.pointwise(extrema.clamp, x, minimum=float(ends[0]), maximum=float(ends[1]))


def _add_product(op: Op) -> Rule:
    return lambda t, x, a, b, value=1: t.emit(op, x, a, b, value=float(value))


def _interpolate(t: Tracer, start: Tensor, end: Tensor, weight: Operand) -> Tensor:
    if isinstance(weight, Tensor):
        return t.emit(weighted_sums.interpolate, start, end, weight)
    return _pair(t, weighted_sums.interpolate, start, end, weight=float(weight))


def _near_whole(to: str) -> Rule:
    def rule(t: Tracer, x: Tensor, decimals: int = 0) -> Tensor:
        if decimals:
            raise refuse(f"decimals {decimals}", "round to whole numbers")
        return t.pointwise(quotients.whole_number, x, to=to)

    return rule


def _nan_to_num(
    t: Tracer,
    x: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    largest = float(np.finfo(np.float32).max)
    values = ((nan, 0.0), (posinf, largest), (neginf, -largest))
    numbers = (default if value is None else float(value) for value, default in values)
    attrs = dict(zip(("nan", "above", "below"), numbers, strict=True))
    return t.pointwise(extrema.nan_to_num, x, **attrs)


def plain(op: Op, **attrs: Any) -> Rule:
    """Return the rule of an op of one tensor."""
    return lambda t, x, **options: t.pointwise(op, x, **attrs)


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
        **dict.fromkeys(("neg", "negative"), negative),
        "pow": power,
        "square": lambda t, x: power(t, x, 2),
        "reciprocal": lambda t, x: power(t, x, -1),
        "exp": plain(exponentials.exp),
        **dict.fromkeys(("exp2", "special_exp2"), plain(exponentials.exp2)),
        **dict.fromkeys(("expm1", "special_expm1"), plain(exponentials.expm1)),
        "log": plain(exponentials.log),
        "log2": plain(exponentials.log2),
        "log10": plain(exponentials.log10),
        **dict.fromkeys(("log1p", "special_log1p"), plain(exponentials.log1p)),
        "sqrt": plain(exponentials.sqrt),
        "rsqrt": plain(exponentials.rsqrt, **{STEPS: True}),
        "sin": plain(trigonometry.sin),
        "cos": plain(trigonometry.cos),
        "tan": plain(trigonometry.tan),
        **dict.fromkeys(("atan", "arctan"), plain(trigonometry.atan)),
        **dict.fromkeys(("asin", "arcsin"), plain(trigonometry.asin)),
        **dict.fromkeys(("acos", "arccos"), plain(trigonometry.acos)),
        "sinh": plain(trigonometry.sinh),
        "cosh": plain(trigonometry.cosh),
        **{name: plain(getattr(trigonometry, name)) for name in ("asinh", "acosh", "atanh")},
        **dict.fromkeys(("atan2", "arctan2"), pair(trigonometry.atan2)),
        **dict.fromkeys(("erf", "special_erf"), plain(trigonometry.erf)),
        **dict.fromkeys(("erfc", "special_erfc"), plain(trigonometry.erfc)),
        "lgamma": plain(gamma.lgamma),
        "digamma": plain(gamma.digamma),
        **dict.fromkeys(("abs", "absolute"), plain(extrema.absolute)),
        **dict.fromkeys(("sign", "sgn"), plain(extrema.sign)),
        "positive": lambda t, x: x,
        **dict.fromkeys(("clamp", "clip"), clamp),
        "clamp_min": lambda t, x, min: clamp(t, x, min),
        "clamp_max": lambda t, x, max: clamp(t, x, None, max),
        "maximum": pair(extrema.maximum),
        "minimum": pair(extrema.minimum),
        "nan_to_num": _nan_to_num,
        **{name: _near_whole(name) for name in ("floor", "ceil", "trunc")},
        "round": _near_whole("nearest"),
        "fix": _near_whole("trunc"),
        "floor_divide": lambda t, a, b: divide(t, a, b, "floor"),
        "remainder": lambda t, a, b: _quotient(t, a, b, quotients.remainder, "floor"),
        "fmod": lambda t, a, b: _quotient(t, a, b, quotients.remainder, "trunc"),
        "addcmul": _add_product(weighted_sums.add_product),
        "addcdiv": _add_product(weighted_sums.add_quotient),
        "lerp": _interpolate,
    }
)
