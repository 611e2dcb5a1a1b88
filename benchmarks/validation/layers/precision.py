"""What a step of layers computes in."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.validation.layers.scalings import Scaling
from policysearch.formats import format_named


@dataclass(frozen=True)
class Precision:
    """What a step computes in.

    `products` and `convolutions`: formats of their operands, and `scaling` how those of products
    with weights are scaled and quantised, in a format of its own, weights once in `accumulation`
    micro-batches; `activations`: of everything stored
    between layers. `masters`: parameters, their gradients and the update are float32 and are cast;
    else all is in `activations`. `update`: whether the step has an optimizer.
    """

    products: str
    convolutions: str
    activations: str
    masters: bool = True
    update: bool = True
    scaling: Scaling | None = None
    accumulation: int = 1

    @property
    def bytes(self) -> int:
        return format_named(self.activations).bits // 8

    @property
    def mixed(self) -> bool:
        """Whether parameters are cast for the products."""
        return self.masters and self.activations != "float32"


FLOAT32 = Precision("float32", "float32", "float32")
TFLOAT32 = Precision("tfloat32", "tfloat32", "float32")
FLOAT16 = Precision("float16", "float16", "float16")
