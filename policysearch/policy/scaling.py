"""Tensor scaling recipes for 8-bit and smaller formats, as rows.

Sources: Transformer Engine `common/recipe/__init__.py` (DelayedScaling, Float8CurrentScaling,
MXFP8BlockScaling, NVFP4BlockScaling); torchao `float8/config.py` (tensorwise, rowwise);
OCP Microscaling Formats (MX) v1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from policysearch.values import InputError, number, one_of

Recipe = Literal["none", "current", "delayed", "rowwise", "mx", "mx_rceil", "nvfp4"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)


@dataclass(frozen=True)
class Scaling:
    """How the operands of an 8-bit (or smaller) matmul are scaled into their format.

    current: scale = max / amax of the tensor itself. delayed: amax from `history` earlier steps,
    their "max" or the "most_recent", divided by 2**margin. rowwise: one scale per row of the
    operand. mx: blocks of 32 along the contraction with a power-of-two (E8M0) scale, rounded down
    as OCP's specification has it, so that the top of a block may saturate. mx_rceil: the same,
    rounded up as Transformer Engine does (torchao's name for it), so that nothing does. nvfp4:
    blocks of 16 with a float8_e4m3fn scale and one float32 scale per tensor.
    """

    recipe: Recipe = "none"
    margin: int = 0
    history: int = 1024
    amax: Literal["max", "most_recent"] = "max"
    power_of_two: bool = False

    def __post_init__(self) -> None:
        one_of("recipe", self.recipe, RECIPES)
        one_of("amax", self.amax, ("max", "most_recent"))
        number("margin", self.margin, 0, 64)
        number("history", self.history, 1, 65536)
        if self.power_of_two and self.recipe in ("none", "mx", "mx_rceil", "nvfp4"):
            raise InputError(
                f"power_of_two: True with recipe {self.recipe!r}; "
                "expected a recipe with float32 scales: current, delayed or rowwise"
            )
