"""Recipes that scale 8-bit and smaller operands: what quantising moves, and how products run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policysearch.values import InputError

HELD_OUT = Path(__file__).with_name("held_out.json")
"""What `python -m benchmarks.validation --fit` writes: constants by the family that they miss."""

ALL = ""
"""The family that is missed where none is."""

DIGITS = 4
"""Of what is written."""


@dataclass(frozen=True)
class Scaling:
    """A recipe for the operands of the products with weights.

    `element_bytes` and `weight_bytes`: bytes that quantising moves per element of an activation or
    gradient, and of a weight, both orientations, `forward_bytes` those of the one that a product
    forward reads; `launches`: kernels per tensor. `gathers_narrow`: whether a tensor can be
    quantised before it is gathered from other devices. `blocks`: scales are of blocks of the
    contracted axis, so that a product is scaled within its sum and not once at its end. `format` is
    that of the operands. Fitted: `elements`, those of a reduction that quantising one element is
    like, and `rate`, what scaling leaves of the rate that large products of the format achieve.
    """

    name: str
    format: str
    element_bytes: float
    weight_bytes: float
    forward_bytes: float
    launches: int
    gathers_narrow: bool = True
    blocks: bool = False
    elements: float = 1.0
    rate: float = 1.0

    @property
    def family(self) -> str:
        """What is scaled together; recipes whose casts nothing compiles are of the same family."""
        return self.name.partition(".")[0]


SCALINGS: dict[str, Scaling] = {
    row.name: row
    for row in (
        Scaling("delayed", "float8_e4m3fn", 4, 6, 3, 1),
        Scaling("current", "float8_e4m3fn", 6, 8, 5, 2),
        Scaling("row", "float8_e4m3fn", 14, 14, 3, 4, gathers_narrow=False),
        Scaling("block", "float8_e4m3fn", 8, 10, 3, 2, blocks=True),
        Scaling("mx", "float8_e4m3fn", 4, 6, 3, 1, blocks=True),
        Scaling("nvfp4", "float4_e2m1fn", 10, 12, 4.5, 3, blocks=True),
        Scaling("row.eager", "float8_e4m3fn", 100, 100, 50, 20, gathers_narrow=False),
        Scaling("current.eager", "float8_e4m3fn", 10, 12, 5, 4),
    )
}
"""Bytes of delayed, current and row from torchao's roofline of float8 training, the others alike.

Forward, a largest value of a tensor is a pass of its own; those of rows and blocks are found by the
kernel that casts.

The bytes of casts that nothing compiles are assumed.
"""


@dataclass(frozen=True)
class NarrowConstants:
    """What is fitted of recipes: `elements` of all, and the `rates` of products by recipe."""

    elements: float
    rates: Mapping[str, float]

    def of(self, scaling: Scaling) -> Scaling:
        """Return the recipe with what is fitted."""
        return replace(scaling, elements=self.elements, rate=self.rates[scaling.name])


def constants_data(constants: NarrowConstants) -> dict[str, Any]:
    """Return constants as data that `read_held_out` reads, each number of so many DIGITS."""
    rates = {name: round(rate, DIGITS) for name, rate in constants.rates.items()}
    return {"elements": round(constants.elements, DIGITS), "rates": rates}


def read_held_out() -> dict[str, NarrowConstants]:
    """Return constants by the family that they did not see, ALL those of all rows."""
    data = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    return {name: NarrowConstants(row["elements"], row["rates"]) for name, row in data.items()}


def scaling_named(text: str) -> Scaling:
    """Return the recipe that a published row's words mean; InputError where none is known."""
    said = text.lower()
    if "no compile" in said and "row" in said:
        return SCALINGS["row.eager"]
    if "eager" in said and "nocompile" in said:
        return SCALINGS["current.eager"]
    for words, name in (
        (("nvfp4",), "nvfp4"),
        (("mxfp8", "mx"), "mx"),
        (("row",), "row"),
        (("block",), "block"),
        (("delayed",), "delayed"),
        (("tensor", "current", "dynamic", "mixed granularity"), "current"),
        (("static",), "delayed"),
    ):
        if any(word in said for word in words):
            return SCALINGS[name]
    raise InputError(
        f"unknown scaling recipe {text!r}; expected delayed, current, row, block, mx or nvfp4"
    )
