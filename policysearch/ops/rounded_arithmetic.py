"""Arithmetic inside a norm whose values are all of one format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policysearch.formats import Format, format_named
from policysearch.graph import Attrs, FloatArray
from policysearch.ops.summation import LANES
from policysearch.rounding.rounder import quantise

SEEN = "seen"
"""The attribute of who is told of every rounding inside an op."""

Seen = Callable[[FloatArray, FloatArray], None]
"""Told of values, flat, before and after a rounding."""


def inner_arithmetic(format: str, attrs: Attrs) -> RoundedArithmetic:
    """Return the arithmetic of an op with these attributes, that is rounded onto a format."""
    return RoundedArithmetic(format_named(format), attrs.get(SEEN))


@dataclass(frozen=True)
class RoundedArithmetic:
    """Arithmetic in a format: float32 operations, each rounded onto it, and `seen` told of it.

    Means are over the first axis of `[n, m]` or, of gradients of parameters, sums. A sum has LANES
    partial sums side by side (`ops/summation.py`), each rounded after every addition.
    """

    format: Format
    seen: Seen | None = None

    def __call__(self, values: FloatArray) -> FloatArray:
        rounded = quantise(values, self.format)
        if self.seen is not None:
            self.seen(np.ravel(values), np.ravel(rounded))
        return rounded

    def sum(self, values: FloatArray) -> FloatArray:
        lanes = np.zeros((LANES, *values.shape[1:]), np.float32, like=values)
        for start in range(0, len(values), LANES):
            rows = values[start : start + LANES]
            lanes[: len(rows)] = self(lanes[: len(rows)] + rows)
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = self(lanes[:half] + lanes[half:])
        return lanes[0, ...]

    def mean(self, values: FloatArray) -> FloatArray:
        return self(self.sum(values) / np.float32(len(values)))

    def variance(self, x: FloatArray, mean: FloatArray) -> FloatArray:
        centred = self(x - mean)
        return self.mean(self(centred * centred))

    def inverse(self, variance: FloatArray, epsilon: float) -> FloatArray:
        root = self(np.sqrt(self(self(variance) + np.float32(epsilon))))
        return self(np.float32(1.0) / root)

    def normal(self, x: FloatArray, mean: FloatArray, inverse: FloatArray) -> FloatArray:
        return self(self(x - self(mean)) * self(inverse))

    def gradient(
        self, grad: FloatArray, normal: FloatArray, inverse: FloatArray, fixed: bool
    ) -> FloatArray:
        """Return (g - mean(g) - y mean(g y)) / deviation; g's alone where the rest is `fixed`."""
        if not fixed:
            along = self(normal * self.mean(self(grad * normal)))
            grad = self(self(grad - self.mean(grad)) - along)
        return self(grad * self(inverse))
