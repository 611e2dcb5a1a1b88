"""The Pareto front of points to be minimised, and the picks from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Point = tuple[float, ...]


def dominates(a: Point, b: Point) -> bool:
    """Whether `a` is nowhere worse and somewhere better than `b` (smaller is better)."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def non_dominated(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points no other point dominates, in the given order.

    Of equal points only the first is kept. Goes through the points in lexicographic order, where
    a point can only be dominated by one before it.
    """
    front: list[int] = []
    kept = np.empty((len(points), len(points[0]) if points else 0))
    for index in sorted(range(len(points)), key=lambda i: (points[i], i)):
        # A member that is nowhere worse dominates this point, or equals it and came first.
        if not (kept[: len(front)] <= points[index]).all(axis=1).any():
            kept[len(front)] = points[index]
            front.append(index)
    return sorted(front)


def knee(points: Sequence[Point]) -> int:
    """Return the index of the point nearest to the ideal, each axis scaled to the front's range.

    The ideal is the best of the front on every axis at once; distance is Euclidean. Ties go to
    the first point. Raises ValueError for no points.
    """
    if not points:
        raise ValueError("knee of no points")
    axes = list(zip(*points, strict=True))
    lows = [min(axis) for axis in axes]
    spans = [max(axis) - low or 1.0 for axis, low in zip(axes, lows, strict=True)]

    def distance(point: Point) -> float:
        scaled = ((x - low) / span for x, low, span in zip(point, lows, spans, strict=True))
        return math.hypot(*scaled)

    return min(range(len(points)), key=lambda i: (distance(points[i]), i))
