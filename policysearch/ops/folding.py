"""Sums of a defined order whose errors stay small: of normalisations and of softmax."""

from __future__ import annotations

import numpy as np

from policysearch.graph import FloatArray

LANES = 64
"""Sums over rows that `sum_rows` keeps side by side."""


def fold(values: FloatArray, half: FloatArray) -> FloatArray:
    """Return the sum of `values` [n, ...] over the first axis, a view of the spent `half`.

    The second half is added to the first until one is left (of an odd number, the middle one
    waits), so that an error grows with the logarithm of n. `half` holds (n + 1) // 2 of them; it
    may be `values`.
    """
    count = len(values)
    if count == 1:
        np.copyto(half[:1], values)
    while count > 1:
        kept = (count + 1) // 2
        pairs = count - kept
        np.add(values[:pairs], values[kept:count], out=half[:pairs])
        if pairs < kept and half is not values:
            half[pairs] = values[pairs]
        values, count = half, kept
    return half[0, ...]


def sum_rows(values: FloatArray, out: FloatArray) -> None:
    """Set `out` [n] to the sums of `values` [n, rows] over the rows; `values` is spent.

    Row r is added to sum r % LANES, one row after the other; those sums are folded.
    """
    count, rows = values.shape
    whole = rows // LANES * LANES
    lanes = np.zeros((count, LANES), np.float32)
    if whole:
        blocks = values[:, :whole].reshape(count, -1, LANES)
        np.add.reduce(blocks, axis=1, out=lanes)
    rest = lanes[:, : rows - whole]
    np.add(rest, values[:, whole:], out=rest)
    np.add(fold(lanes.T, lanes.T), np.float32(0.0), out=out)
