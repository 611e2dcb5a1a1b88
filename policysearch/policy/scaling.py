"""Tensor scaling recipes for 8-bit and smaller formats, as rows.

Sources: Transformer Engine `common/recipe/__init__.py` (DelayedScaling, Float8CurrentScaling,
Float8BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling); torchao `float8/config.py` (tensorwise,
rowwise); OCP Microscaling Formats (MX) v1.0; DeepSeek-V3 (arXiv 2412.19437, section 3.3); Ascend's
CANN, ops-nn 1297f177 `quant/dynamic_block_quant/README.md` (its `dst_type_max` is `top`); qwix
0.1.8 `core/dot_general_qt.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from policysearch.values import InputError, number, one_of

Recipe = Literal[
    "none", "current", "shifted", "delayed", "rowwise", "mx", "mx_rceil", "nvfp4", "blocks"
]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
BLOCKS: Mapping[str, int] = MappingProxyType({"mx": 32, "mx_rceil": 32, "nvfp4": 16, "blocks": 128})
"""How many values along the contraction share a scale, by recipe."""

E8M0 = "e8m1"
"""E8M0 has neither sign nor mantissa; no row has that, and this one holds its powers of two."""

UNBOUND = ("none", "shifted", "mx", "mx_rceil", "nvfp4")
"""Recipes whose scales are of one kind, and bring the largest value to one number."""

SCALES: Mapping[str, str] = MappingProxyType(
    {"mx": E8M0, "mx_rceil": E8M0, "nvfp4": "float8_e4m3fn", "blocks": "float32"}
)
"""The formats of these scales."""


@dataclass(frozen=True)
class Scaling:
    """How the operands of an 8-bit (or smaller) matmul are scaled into their format, by `recipe`.

    current: scale = max / amax of the tensor itself. shifted: so, and a backward product shifts the
    scale of its other operand onto the gradient, which is scaled after that. delayed: amax from
    `history` earlier steps, their `amax` "max" or the "most_recent". These divide by 2**`margin`.
    rowwise: one scale per row of the operand. mx: blocks of 32 along the contraction with a
    power-of-two (E8M0) scale, rounded down as OCP's specification has it, so that the top of a
    block may saturate. mx_rceil: the same, rounded up as Transformer Engine does (torchao's name
    for it), so that nothing does. nvfp4: blocks of 16 with a float8_e4m3fn scale and one float32
    scale per tensor; gradients are rounded stochastically. blocks: blocks of 128 with a float32
    scale, or a `power_of_two`.

    `weights`: blocks of weights are "rows" along the contraction, or "squares" (16 x 16, 32 x 32,
    128 x 128), so that the forward and the backward product read one copy. `hadamard`: both
    operands of wgrad are turned by a Hadamard transform of 16 with fixed signs before nvfp4 scales
    them. `tensor`: the float32 scale of nvfp4 is of the "whole" operand or of each of its "rows",
    weights and gradients apart. `top` is what a float32 scale brings the largest value to, 0 the
    largest number of the format: tapered formats are finest far below that. `four_over_six`: blocks
    of nvfp4 reach up to 4 or to 6, whichever loses less; those of gradients to 6.
    """

    recipe: Recipe = "none"
    margin: int = 0
    history: int = 1024
    amax: Literal["max", "most_recent"] = "max"
    power_of_two: bool = False
    weights: Literal["rows", "squares"] = "rows"
    hadamard: bool = False
    tensor: Literal["whole", "rows"] = "whole"
    top: float = 0.0
    four_over_six: bool = False

    def __post_init__(self) -> None:
        one_of("recipe", self.recipe, RECIPES)
        one_of("amax", self.amax, ("max", "most_recent"))
        number("margin", self.margin, 0, 64)
        number("history", self.history, 1, 65536)
        one_of("weights", self.weights, ("rows", "squares"))
        one_of("tensor", self.tensor, ("whole", "rows"))
        number("top", self.top, 0, 2.0**127)
        for name in ("power_of_two", "top"):
            if getattr(self, name) and self.recipe in UNBOUND:
                raise InputError(
                    f"{name}: {getattr(self, name)!r} with recipe {self.recipe!r}; "
                    "expected a recipe with float32 scales: current, delayed, rowwise or blocks"
                )
        if self.weights != "rows" and self.recipe not in BLOCKS:
            raise InputError(
                f"weights: {self.weights!r} with recipe {self.recipe!r}; "
                f"expected a recipe with blocks: {', '.join(BLOCKS)}"
            )
        if self.four_over_six and self.hadamard:
            raise InputError("four_over_six: True with hadamard; expected one of the two")
        for name, usual in (("hadamard", False), ("tensor", "whole"), ("four_over_six", False)):
            if getattr(self, name) != usual and self.recipe != "nvfp4":
                given = f"{name}: {getattr(self, name)!r} with recipe {self.recipe!r}"
                raise InputError(f"{given}; expected recipe 'nvfp4'")

    @property
    def summary(self) -> str:
        """The recipe and what of it is not usual: "nvfp4, 16 x 16 weights, Hadamard"."""
        block = BLOCKS.get(self.recipe, 0)
        words = [self.recipe, *[f"{block} x {block} weights"] * (self.weights == "squares")]
        words += ["power of two"] * self.power_of_two + ["Hadamard"] * self.hadamard
        words += ["4 over 6"] * self.four_over_six
        words += ["a scale per row"] * (self.tensor == "rows")
        return ", ".join(words + [f"up to {self.top:g}"] * bool(self.top))
