"""What layer norm and its gradients share: means over rows, rows made normal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import last_axis_first
from policysearch.ops.lanes import LANES, sum_in_lanes


class RowMean:
    """The mean over the first axis of what is in `scratch`, of the shape of x, for each row."""

    def __init__(self, x: FloatArray, work: FloatArray) -> None:
        self.scratch = work[: x.size].reshape(x.shape)
        lanes = (LANES, *x.shape[1:])
        self._lanes = work[x.size :][: size(lanes)].reshape(lanes)
        self._share = np.float32(1.0 / len(x))

    def __call__(self) -> FloatArray:
        total = sum_in_lanes(self.scratch, self._lanes)
        return np.multiply(total, self._share, out=total)


def work_of_means(matrices: int) -> Callable[[Sequence[Shape], Shape, Attrs], int]:
    """Return the `work` of an op with so many matrices like x, and what `RowMean` needs beside."""

    def work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
        return matrices * size(inputs[0]) + LANES * size(inputs[0][:-1])

    return work


def means_and_inverses(statistics: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the views of all means and of all inverse deviations."""
    both = last_axis_first(statistics)
    return both[0, ...], both[1, ...]


def normaliser(
    x: FloatArray, statistics: FloatArray, normal: FloatArray
) -> Callable[[], FloatArray]:
    """Return the call that sets `normal` to (x - mean) / deviation, all [features, ...]."""
    mean, inverse = means_and_inverses(statistics)

    def run() -> FloatArray:
        np.subtract(x, mean, out=normal)
        return np.multiply(normal, inverse, out=normal)

    return run


def over_rows(weight: FloatArray, x: FloatArray) -> FloatArray:
    """Return the weight [features] as it broadcasts over [features, ...]."""
    return weight.reshape(-1, *(1,) * (x.ndim - 1))
