"""Counts of values that rounding pushed out of a format's range."""

from __future__ import annotations

import numpy as np

from policysearch.formats import Format, format_named
from policysearch.graph import FloatArray, Node
from policysearch.train.lost import Lost, Tally


def nearest_to_largest(fmt: Format) -> float:
    """Return up to where a value is nearer to the largest number than to what would be the next.

    Scaled tensors are full of such values: their scale puts the largest on the format's largest,
    give or take its own rounding.
    """
    return fmt.max + 2.0 ** (fmt.quantum_exponent(fmt.max_exponent) - 1)


class Probe:
    """An observer of the emulator that counts overflows and underflows per layer and role.

    `step` is the step that is running.
    """

    def __init__(self) -> None:
        self.step = 0
        self.tally = Tally()

    def __call__(self, node: Node, before: FloatArray, after: FloatArray) -> None:
        """Count finite values too large for the format, and non-zero ones that became zero."""
        size = np.abs(before)
        rounded = np.abs(after)
        if node.rounding.overflow == "inf":
            over = np.isfinite(size) & ~np.isfinite(rounded)
        else:
            over = np.isfinite(size) & (size > nearest_to_largest(format_named(node.format)))
        under = (size > 0) & (rounded == 0)
        place = node.layer, node.role, self.step
        self.tally.add("overflow", *place, size[over], len(size))
        self.tally.add("underflow", *place, size[under], len(size))

    def lost(self) -> tuple[Lost, ...]:
        """Return what over- and underflowed, by layer and role."""
        return self.tally.lost()

    def overflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self.tally.by_layer("overflow")

    def underflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self.tally.by_layer("underflow")
