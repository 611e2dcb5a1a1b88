"""Values that a format lost in a training: how many by layer, role and op, when first, how large.

`Probe` counts over- and underflows where values are rounded; `Tally` adds all kinds up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from policysearch.formats import Format, format_named
from policysearch.graph import FloatArray, Node, Role

Kind = Literal["overflow", "underflow", "born", "swamped", "decay", "state"]


@dataclass(frozen=True)
class LostValues:
    """What was lost in one way by one op of a layer in one role, in the steps that were looked at.

    `kind`: "overflow" became infinite, NaN or was saturated, "underflow" became zero, "born" is a
    NaN or an infinity that was computed of finite values, "swamped" an update too small to move its
    parameter, "decay" a weight decay that is, "state" an update too small to move the optimizer's
    state. `count` of the `seen` values were lost, first in step `first_step`; `largest` is the
    largest absolute value among them, before rounding. `op` is that of op lists, "" in records
    older than it: a gradient has the op that it is of, a cast the op that reads it.
    """

    kind: Kind
    layer: str
    role: Role
    count: int
    seen: int
    first_step: int
    largest: float
    op: str = ""


def listed_op(node: Node) -> str:
    """Return the op of a node by the name that op lists have for it."""
    return node.source or node.op.name


class Tally:
    """Adds up what was lost, by layer, role and op; goes on from `rows`, those of another."""

    def __init__(self, rows: Iterable[LostValues] = ()) -> None:
        # count, seen, first step and largest: numbers that change, since there are many of them
        self._rows: dict[tuple[Kind, str, Role, str], list[Any]] = {
            (row.kind, row.layer, row.role, row.op): [
                *(row.count, row.seen, row.first_step, row.largest)
            ]
            for row in rows
        }

    @property
    def rows(self) -> tuple[LostValues, ...]:
        """All that was added, also what lost nothing, in the order it came."""
        return tuple(
            LostValues(kind, layer, role, count, seen, first, largest, op)
            for (kind, layer, role, op), (count, seen, first, largest) in self._rows.items()
        )

    def add(
        self,
        kind: Kind,
        layer: str,
        role: Role,
        step: int,
        sizes: FloatArray,
        of: int,
        op: str = "",
    ) -> int:
        """Count the absolute values `sizes` as lost in `step` among `of`; return how many."""
        key, count = (kind, layer, role, op), len(sizes)
        row = self._rows.setdefault(key, [0, 0, step, 0.0])
        row[1] += of
        if count:
            row[2] = row[2] if row[0] else step
            row[0] += count
            row[3] = max(row[3], float(np.max(sizes)))
        return count

    def lost(self) -> tuple[LostValues, ...]:
        """Return what was lost, without what lost nothing, in an order that is always the same."""
        rows = ((row.kind, row.layer, row.role, row.op, row) for row in self.rows if row.count)
        return tuple(row for *_, row in sorted(rows, key=lambda each: each[:4]))

    def by_layer(self, kind: Kind) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs of one kind, layers without a count left out."""
        counts: dict[str, int] = {}
        for row in self.rows:
            if row.kind == kind:
                counts[row.layer] = counts.get(row.layer, 0) + row.count
        return tuple((layer, count) for layer, count in counts.items() if count)


NONE = np.zeros(0, np.float32)


@cache
def _largest(format: str) -> float:
    return format_named(format).max


def nearest_to_largest(fmt: Format) -> float:
    """Return up to where a value is nearer to the largest number than to what would be the next.

    Scaled tensors are full of such values: their scale puts the largest on the format's largest,
    give or take its own rounding.
    """
    return fmt.max + 2.0 ** (fmt.quantum_exponent(fmt.max_exponent) - 1)


def overflowed(node: Node, size: FloatArray, after: FloatArray) -> NDArray[np.bool_]:
    """Return which finite values of absolute `size` were too large for the node's format.

    `after` are the values as rounded.
    """
    # Without saturation what overflows is infinite or NaN. A saturated value shows nothing, so that
    # its size before rounding decides; up to half a step above the largest it only rounds. Formats
    # without infinity and NaN saturate whatever the policy asks for.
    fmt = format_named(node.format)
    if node.rounding.overflow == "inf" and fmt.specials != "none":
        lost: NDArray[np.bool_] = ~np.isfinite(after)
    else:
        lost = size > nearest_to_largest(fmt)
    lost &= np.isfinite(size)
    return lost


class Probe:
    """An observer of the emulator that counts overflows and underflows per layer, role and op.

    `step` is the step that is running.
    """

    def __init__(self) -> None:
        self.step = 0
        self.tally = Tally()

    def __call__(self, node: Node, before: FloatArray, after: FloatArray) -> None:
        """Count finite values too large for the format, and non-zero ones that became zero."""
        place, op, over, under = (node.layer, node.role, self.step), listed_op(node), NONE, NONE
        # most values fit: extremes and two counts are faster than to look at each
        limit, zero = _largest(node.format), after == 0
        if not -limit <= before.min() <= before.max() <= limit:
            size = np.abs(before)
            over = size[overflowed(node, size, after)]
        if np.count_nonzero(before == 0) != np.count_nonzero(zero):
            under = np.abs(before[zero & (before != 0)])
        self.tally.add("overflow", *place, over, len(before), op)
        self.tally.add("underflow", *place, under, len(before), op)

    def lost(self) -> tuple[LostValues, ...]:
        """Return what over- and underflowed, by layer, role and op."""
        return self.tally.lost()

    def overflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self.tally.by_layer("overflow")

    def underflow_counts(self) -> tuple[tuple[str, int], ...]:
        """Return (layer, count) pairs, layers without a count left out."""
        return self.tally.by_layer("underflow")
