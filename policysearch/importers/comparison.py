"""Import rules: comparisons and logic, whose results are truth values that nothing rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.importers.elementwise import pair
from policysearch.importers.program import TRUTHS
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops.comparison import compare
from policysearch.ops.extrema import absolute

ON_EVERY_GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, math.inf)
"""Numbers, with either sign, that the narrowest format has: float4_e2m1fn."""

SEEN_FROM_THE_OTHER_SIDE: Mapping[str, str] = MappingProxyType(
    {
        "less": "greater",
        "less_equal": "greater_equal",
        "greater": "less",
        "greater_equal": "less_equal",
    }
)


def _holds(relation: str) -> Rule:
    def rule(t: Tracer, a: Any, b: Any) -> Tensor:
        if not isinstance(a, Tensor):
            return _holds(SEEN_FROM_THE_OTHER_SIDE.get(relation, relation))(t, b, a)  # type: ignore[no-any-return]
        if isinstance(b, Tensor):
            return pair(compare, relation=relation)(t, a, b)  # type: ignore[no-any-return]
        if abs(b) in ON_EVERY_GRID or t.is_whole(a) or not t.is_trained(a):
            return t.pointwise(compare, a, relation=relation, number=float(b))
        with t.b.scope(role="fprop"):  # torch compares with the number in the tensor's format
            number = t.full_like(float(b), a)
        return pair(compare, relation=relation)(t, a, number)  # type: ignore[no-any-return]

    return rule


def _not(t: Tracer, x: Tensor) -> Tensor:
    return t.pointwise(compare, x, relation="equal", number=0.0)


def _bits(rule: Rule) -> Rule:
    """Return the rule of an op on bits, which on truth values is logic."""

    def of_truths(t: Tracer, *operands: Any) -> Tensor:
        if t.kind != TRUTHS:
            raise refuse(
                "bits of whole numbers", "compute them before, as an int64 input of their own"
            )
        return rule(t, *operands)  # type: ignore[no-any-return]

    return of_truths


def _size_is(relation: str, number: float) -> Rule:
    """Return the rule that compares sizes with a number."""

    def rule(t: Tracer, x: Tensor) -> Tensor:
        return t.pointwise(compare, t.pointwise(absolute, x), relation=relation, number=number)

    return rule


LOGIC = ("and", "or", "xor")

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{
            name: _holds(relation)
            for relation, names in {
                "equal": ("eq",),
                "not_equal": ("ne", "not_equal"),
                "less": ("lt", "less"),
                "less_equal": ("le", "less_equal"),
                "greater": ("gt", "greater"),
                "greater_equal": ("ge", "greater_equal"),
            }.items()
            for name in names
        },
        **{f"logical_{name}": _holds(name) for name in LOGIC},
        **{f"bitwise_{name}": _bits(_holds(name)) for name in LOGIC},
        **{f"__{name}__": _bits(_holds(name)) for name in LOGIC},
        "logical_not": _not,
        "bitwise_not": _bits(_not),
        "isnan": lambda t, x: pair(compare, relation="not_equal")(t, x, x),
        "isfinite": _size_is("less", math.inf),
        "isinf": _size_is("equal", math.inf),
        "isposinf": lambda t, x: t.pointwise(compare, x, relation="equal", number=math.inf),
        "isneginf": lambda t, x: t.pointwise(compare, x, relation="equal", number=-math.inf),
    }
)
