"""Sums of a defined order, that of normalisations and of softmax."""

from __future__ import annotations

import numpy as np

from policysearch.graph import FloatArray

LANES = 16
"""Sums that are kept side by side: errors stay small, and a vector of a processor holds them."""


def sum_in_lanes(values: FloatArray, lanes: FloatArray) -> FloatArray:
    """Return the sum of `values` [n, ...] over the first axis, a view of the spent `lanes`.

    Number i is added to number i % LANES of `lanes` [LANES, ...], which begin as zeros, one after
    the other; then the second half of them is added to the first until one is left.
    """
    whole = len(values) // LANES * LANES
    blocks = values[:whole].reshape(-1, *lanes.shape)
    np.add.reduce(blocks, axis=0, out=lanes, initial=np.float32(0.0))
    rest = lanes[: len(values) - whole]
    np.add(rest, values[whole:], out=rest)
    half = LANES // 2
    while half:
        np.add(lanes[:half], lanes[half : 2 * half], out=lanes[:half])
        half //= 2
    return lanes[0, ...]
