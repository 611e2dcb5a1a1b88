"""What a step of layers computes in where operands are scaled."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.validation.narrow.scalings import Scaling
from policysearch.formats import format_named
from policysearch.objective.published.stacks import Precision


@dataclass(frozen=True)
class NarrowPrecision(Precision):
    """A precision, and how operands of products with weights are scaled.

    `scaling` says so, and quantises them in a format of its own, weights once in `accumulation`
    micro-batches.
    """

    scaling: Scaling | None = None
    accumulation: int = 1

    @property
    def bytes(self) -> int:
        return format_named(self.activations).bits // 8
