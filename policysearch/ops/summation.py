"""Sums whose order is defined: float32 sums depend on it, and every kernel has to follow it."""

from __future__ import annotations

import numpy as np

from policysearch.graph import FloatArray

LANES = 16
"""Sums that are kept side by side: errors stay small, and a vector of a processor holds them."""


def lane_sum(values: FloatArray) -> FloatArray:
    """Return the sum of `values` [n, ...] over the first axis: of normalisations and of softmax.

    Number i is added to lane i % LANES, which begin as zeros, one after the other; then the second
    half of the lanes is added to the first until one is left.
    """
    whole = len(values) // LANES * LANES
    blocks = values[:whole].reshape(-1, LANES, *values.shape[1:])
    lanes = np.add.reduce(blocks, axis=0, initial=np.float32(0.0))
    lanes[: len(values) - whole] += values[whole:]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0, ...]


def lane_mean(values: FloatArray) -> FloatArray:
    """Return the mean of `values` [n, ...] over the first axis, summed as `lane_sum` does."""
    return lane_sum(values) * np.float32(1.0 / len(values))


def channel_sum(values: FloatArray) -> FloatArray:
    """Return the sum of [batch, channels, ...] over all but the channels.

    Of matrices and images as products with ones, in the order in which they are stored: BLAS beats
    a strided reduction, and its order of additions is part of what the sum means.
    """
    if values.ndim == 2:
        return np.matmul(np.ones(len(values), np.float32, like=values), values)
    if values.ndim != 4:
        return np.add.reduce(values, axis=(0, *range(2, values.ndim)))
    batch, channels, height, width = values.shape
    rows = values.transpose(2, 1, 3, 0).reshape(height, channels, width * batch)
    return np.add.reduce(np.matmul(rows, np.ones(width * batch, np.float32, like=values)), axis=0)
