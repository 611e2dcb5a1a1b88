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


def covers(a: Point, b: Point, told: Sequence[float]) -> bool:
    """Whether `a` is no worse than `b` by what can be told.

    Axis i is resolved from a relative difference of `told[i]` on, 0 for an exact one; those with a
    resolution must hold values of one sign.
    """
    return all(
        _steps(x, least) - _steps(y, least) < 1.0 if least else x <= y
        for x, y, least in zip(a, b, told, strict=True)
    )


def thinned(points: Sequence[Point], told: Sequence[float]) -> list[int]:
    """Return the indices of the points that no other kept one `covers`, in the given order.

    Points are looked at from the best on the exact axes on, and among equals from the best on all
    others together, so that what is lost with a point is less than one resolution. With exact
    axes alone these are the `non_dominated` ones.
    """
    kept: list[int] = []
    for index in sorted(range(len(points)), key=lambda i: (_key(points[i], told), points[i], i)):
        if not any(covers(points[k], points[index], told) for k in kept):
            kept.append(index)
    return sorted(kept)


def _key(point: Point, told: Sequence[float]) -> tuple[Point, float]:
    pairs = list(zip(point, told, strict=True))
    coarse = math.fsum(_steps(value, least) for value, least in pairs if least)
    return tuple(value for value, least in pairs if not least), coarse


def _steps(value: float, told: float) -> float:
    """Return the logarithm of a value in steps of its resolution, larger being worse."""
    return math.copysign(1.0, value) * math.log(abs(value)) / math.log1p(told)


def knee(points: Sequence[Point], decades: int | None = None) -> int:
    """Return the index of the point nearest to the ideal, each axis scaled to the front's range.

    The axis `decades` enters by its logarithm; there zero counts as the least above it.

    The ideal is the best of the front on every axis at once; distance is Euclidean. Ties go to
    the first point. Raises ValueError for no points.
    """
    if not points:
        raise ValueError("knee of no points")
    if decades is not None:
        points = _logarithmic(points, decades)
    axes = list(zip(*points, strict=True))
    lows = [min(axis) for axis in axes]
    spans = [max(axis) - low or 1.0 for axis, low in zip(axes, lows, strict=True)]

    def distance(point: Point) -> float:
        scaled = ((x - low) / span for x, low, span in zip(point, lows, spans, strict=True))
        return math.hypot(*scaled)

    return min(range(len(points)), key=lambda i: (distance(points[i]), i))


def _logarithmic(points: Sequence[Point], axis: int) -> list[Point]:
    least = min((point[axis] for point in points if point[axis] > 0.0), default=1.0)
    return [
        (*point[:axis], math.log10(max(point[axis], least)), *point[axis + 1 :]) for point in points
    ]
