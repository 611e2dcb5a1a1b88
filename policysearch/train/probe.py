"""Counts of values that rounding pushed out of a format's range."""

from __future__ import annotations

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import FloatArray, Node
from policysearch.train.lost import Lost, Tally


class Probe:
    """An observer of the emulator that counts overflows and underflows per layer and role.

    `step` is the step that is running.
    """

    def __init__(self) -> None:
        self.step = 0
        self._tally = Tally()

    def __call__(self, node: Node, before: FloatArray, after: FloatArray) -> None:
        """Count finite values beyond the format's largest, and non-zero ones that became zero."""
        size = np.abs(before)
        rounded = np.abs(after)
        beyond = np.isfinite(size) & (size > format_named(node.format).max)
        # A value just above the largest may still round down to it.
        over = beyond & ~((node.rounding.overflow == "inf") & np.isfinite(rounded))
        under = (size > 0) & (rounded == 0)
        place = node.layer, node.role, self.step
        self._tally.add("overflow", *place, size[over], len(size))
        self._tally.add("underflow", *place, size[under], len(size))

    def lost(self) -> tuple[Lost, ...]:
        """Return what over- and underflowed, by layer and role."""
        return self._tally.lost()

    def overflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self._tally.by_layer("overflow")

    def underflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self._tally.by_layer("underflow")
