"""Counts of values that rounding pushed out of a format's range."""

from __future__ import annotations

from collections import Counter

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import FloatArray, Node


class Probe:
    """An observer of the emulator that counts overflows and underflows per layer."""

    def __init__(self) -> None:
        self._overflows: Counter[str] = Counter()
        self._underflows: Counter[str] = Counter()

    def __call__(self, node: Node, before: FloatArray, after: FloatArray) -> None:
        """Count finite values beyond the format's largest, and non-zero ones that became zero."""
        size = np.abs(before)
        rounded = np.abs(after)
        beyond = np.isfinite(size) & (size > format_named(node.format).max)
        # A value just above the largest may still round down to it.
        lost = beyond & ~((node.rounding.overflow == "inf") & np.isfinite(rounded))
        self._overflows[node.layer] += int(np.count_nonzero(lost))
        self._underflows[node.layer] += int(np.count_nonzero((size > 0) & (rounded == 0)))

    def overflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return tuple((name, count) for name, count in self._overflows.items() if count)

    def underflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return tuple((name, count) for name, count in self._underflows.items() if count)
