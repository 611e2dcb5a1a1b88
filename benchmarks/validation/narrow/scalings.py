"""Recipes that scale 8-bit and smaller operands: what quantising moves, and how products run."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.cost.gemm import NARROW_RATES
from policysearch.values import InputError


@dataclass(frozen=True)
class Scaling:
    """A recipe for the operands of the products with weights.

    `element_bytes` and `weight_bytes`: bytes that quantising moves per element of an activation or
    gradient, and of a weight, both orientations; `launches`: kernels per tensor. `rate`: share of
    what the ratio of peaks promises over 16 bits. `gathers_narrow`: whether a tensor can be
    quantised before it is gathered from other devices. `format` is that of the operands.
    """

    name: str
    format: str
    element_bytes: float
    weight_bytes: float
    launches: int
    rate: float
    gathers_narrow: bool = True


SCALINGS: dict[str, Scaling] = {
    row.name: row
    for row in (
        Scaling("delayed", "float8_e4m3fn", 4, 6, 1, 0.97),
        Scaling("current", "float8_e4m3fn", 6, 8, 2, NARROW_RATES["current"]),
        Scaling("row", "float8_e4m3fn", 14, 14, 4, 0.9, gathers_narrow=False),
        Scaling("block", "float8_e4m3fn", 8, 10, 2, 0.8),
        Scaling("mx", "float8_e4m3fn", 4, 6, 1, NARROW_RATES["mx"]),
        Scaling("nvfp4", "float4_e2m1fn", 10, 12, 3, NARROW_RATES["nvfp4"]),
        Scaling("row.eager", "float8_e4m3fn", 100, 100, 20, 0.68, gathers_narrow=False),
        Scaling("current.eager", "float8_e4m3fn", 10, 12, 4, 0.9),
    )
}
"""Bytes of delayed, current and row from torchao's roofline of float8 training, the others alike.

Rates, and the bytes of casts that nothing compiles, are assumed.
"""


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
