"""Recipes that scale 8-bit and smaller operands: what quantising moves, and how products run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policysearch.formats import format_named
from policysearch.values import InputError


@dataclass(frozen=True)
class Scaling:
    """A recipe for the operands of the products with weights.

    `element_bytes` and `weight_bytes`: bytes that quantising moves per element of an activation or
    gradient, and of a weight, both orientations; `launches`: kernels per tensor. `rate`: share of
    what the ratio of peaks promises over 16 bits. `gathers_narrow`: whether a tensor can be
    quantised before it is gathered from other devices. `format` is that of the operands.
    `amaxes`: devices scale by the largest value of their "own" part, or agree on it over all of
    them, on all tensors at once after the forward and after the backward pass of a "step", or on
    each "tensor" as it is quantised.
    """

    name: str
    format: str
    element_bytes: float
    weight_bytes: float
    launches: int
    rate: float
    gathers_narrow: bool = True
    amaxes: Literal["own", "step", "tensor"] = "own"


SCALINGS: dict[str, Scaling] = {
    row.name: row
    for row in (
        Scaling("quantised", "float8_e4m3fn", 0, 0, 0, 0.97),
        Scaling("delayed", "float8_e4m3fn", 4, 6, 1, 0.97, amaxes="step"),
        Scaling("current", "float8_e4m3fn", 6, 8, 2, 0.91),
        Scaling("row", "float8_e4m3fn", 10, 10, 4, 0.68, gathers_narrow=False),
        Scaling("block", "float8_e4m3fn", 8, 10, 2, 0.8),
        Scaling("mx", "float8_e4m3fn", 4, 6, 1, 0.95),
        Scaling("nvfp4", "float4_e2m1fn", 10, 12, 3, 0.5),
        Scaling("row.eager", "float8_e4m3fn", 100, 100, 20, 0.68, gathers_narrow=False),
        Scaling("current.eager", "float8_e4m3fn", 10, 12, 4, 0.9),
    )
}
"""Bytes of delayed, current and row from torchao's roofline of float8 training, the others alike.

Rates, and the bytes of casts that nothing compiles, are assumed; the best products published reach
1.77 (H100) to 1.98 (B200) times bfloat16's. Transformer Engine reduces delayed amaxes over
devices, once each way (`fp8_autocast(fp8_group=...)`), and leaves current ones to each.
"""


def amax_messages(recipe: str, tensors: int) -> int:
    """Return how many times a step reduces the largest values of so many tensors over devices."""
    row = SCALINGS.get(recipe)
    if row is None or row.amaxes == "own":
        return 0
    return min(2, tensors) if row.amaxes == "step" else tensors


def product_rate(format: str, blocks: bool) -> float:
    """Return the rate of products in a format, with scales of `blocks` or of whole tensors."""
    if format_named(format).bits >= 16:
        return 1.0
    if format_named(format).bits <= 4:
        return SCALINGS["nvfp4"].rate
    return SCALINGS["mx" if blocks else "current"].rate


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
        (("tensor", "current", "dynamic"), "current"),
        (("static",), "delayed"),
    ):
        if any(word in said for word in words):
            return SCALINGS[name]
    raise InputError(
        f"unknown scaling recipe {text!r}; expected delayed, current, row, block, mx or nvfp4"
    )
