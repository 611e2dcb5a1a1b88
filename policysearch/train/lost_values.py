"""Values that a format lost in a training: how many by layer and role, when first, how large.

`Probe` counts over- and underflows where values are rounded; `Tally` adds all kinds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from policysearch.formats import Format, format_named
from policysearch.graph import FloatArray, Node, Role

Kind = Literal["overflow", "underflow", "swamped"]


@dataclass(frozen=True)
class LostValues:
    """What was lost in one way by one layer in one role, in the steps that were looked at.

    `kind`: "overflow" became infinite or was saturated, "underflow" became zero, "swamped" is an
    update too small to move its parameter. `count` of the `seen` values were lost, first in step
    `first_step`; `largest` is the largest absolute value among them, before rounding.
    """

    kind: Kind
    layer: str
    role: Role
    count: int
    seen: int
    first_step: int
    largest: float


class Tally:
    """Adds up what was lost, by layer and role; goes on from `rows`, those of another."""

    def __init__(self, rows: Iterable[LostValues] = ()) -> None:
        self._rows = {(row.kind, row.layer, row.role): row for row in rows}

    @property
    def rows(self) -> tuple[LostValues, ...]:
        """All that was added, also what lost nothing, in the order it came."""
        return tuple(self._rows.values())

    def add(self, kind: Kind, layer: str, role: Role, step: int, sizes: FloatArray, of: int) -> int:
        """Count the absolute values `sizes` as lost in `step` among `of`; return how many."""
        key, count = (kind, layer, role), len(sizes)
        row = self._rows.get(key) or LostValues(kind, layer, role, 0, 0, step, 0.0)
        self._rows[key] = replace(
            row,
            count=row.count + count,
            seen=row.seen + of,
            first_step=row.first_step if row.count else step,
            largest=max(row.largest, float(np.max(sizes, initial=0.0))),
        )
        return count

    def lost(self) -> tuple[LostValues, ...]:
        """Return what was lost, without what lost nothing, in an order that is always the same."""
        return tuple(row for _, row in sorted(self._rows.items()) if row.count)

    def by_layer(self, kind: Kind) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs of one kind, layers without a count left out."""
        counts: dict[str, int] = {}
        for row in self._rows.values():
            if row.kind == kind:
                counts[row.layer] = counts.get(row.layer, 0) + row.count
        return tuple((layer, count) for layer, count in counts.items() if count)


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
        # Without saturation what overflows is infinite. A saturated value shows nothing, so that
        # its size before rounding decides; up to half a step above the largest it only rounds.
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

    def lost(self) -> tuple[LostValues, ...]:
        """Return what over- and underflowed, by layer and role."""
        return self.tally.lost()

    def overflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self.tally.by_layer("overflow")

    def underflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self.tally.by_layer("underflow")
