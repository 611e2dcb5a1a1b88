"""Dominated volume of points with one measured and two exact axes, all three to be minimised.

A point is (gap, time, memory); the gap is on any rising scale. Volumes are exact: the space is cut
at the gaps of the points, and between two cuts what is dominated is a staircase in time and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
    members = np.empty((len(points), len(points[0]) if points else 0))
    for index in sorted(range(len(points)), key=lambda i: (points[i], i)):
        # A member that is nowhere worse dominates this point, or equals it and came first.
        if not (members[: len(front)] <= points[index]).all(axis=1).any():
            members[len(front)] = points[index]
            front.append(index)
    return sorted(front)


def covers(a: Point, b: Point, resolutions: Sequence[float]) -> bool:
    """Whether `a` is no worse than `b` by what can be told: epsilon dominance.

    After Laumanns, Thiele, Deb and Zitzler (Evol. Comput. 10(3), 2002), by ratios.

    Axis i is resolved from a relative difference of `resolutions[i]` on, 0 for an exact one; those
    with a resolution must hold values of one sign.
    """
    return all(
        _steps(x, least) - _steps(y, least) < 1.0 if least else x <= y
        for x, y, least in zip(a, b, resolutions, strict=True)
    )


def thinned(points: Sequence[Point], resolutions: Sequence[float]) -> list[int]:
    """Return the indices of the points that no other of them `covers`, in the given order.

    Points are taken from the best on the exact axes on, and among equals from the best on all
    others together, so that what is lost with a point is less than one resolution. With exact
    axes alone these are the `non_dominated` ones.
    """
    chosen: list[int] = []
    for index in sorted(
        range(len(points)), key=lambda i: (_key(points[i], resolutions), points[i], i)
    ):
        if not any(covers(points[k], points[index], resolutions) for k in chosen):
            chosen.append(index)
    return sorted(chosen)


def _key(point: Point, resolutions: Sequence[float]) -> tuple[Point, float]:
    pairs = list(zip(point, resolutions, strict=True))
    coarse = math.fsum(_steps(value, least) for value, least in pairs if least)
    return tuple(value for value, least in pairs if not least), coarse


def _steps(value: float, resolution: float) -> float:
    """Return the logarithm of a value in steps of its resolution, larger being worse."""
    return math.copysign(1.0, value) * math.log(abs(value)) / math.log1p(resolution)


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


Array = NDArray[np.float64]


def hypervolume(points: Array, reference: Array) -> float:
    """Return the volume that `points` [n, 3] dominate below the corner `reference` [3]."""
    inside = front_of(points[(points < reference).all(axis=1)])
    if not len(inside):
        return 0.0
    corner = inside[:, 1:].min(axis=0)[None]
    cuts, free = free_areas(inside, corner, reference)
    whole = float(np.prod(reference[1:] - corner[0]))
    return float(((whole - free[1:, 0]) * np.diff(cuts[1:])).sum())


def front_of(points: Array) -> Array:
    """Return those of `points` [n, 3] that no other dominates: all that volumes depend on."""
    return points[places_of_front(points)]


def places_of_front(points: Array) -> list[int]:
    """Return the places of those of `points` [n, 3] that no other dominates."""
    return non_dominated([tuple(point) for point in points.tolist()])


def improvements(points: Array, archive: Array, reference: Array) -> Array:
    """Return by how much each of `points` [n, 3] alone would raise the volume of `archive`: [n]."""
    cuts, free = free_areas(archive, points[:, 1:], reference)
    lower = np.maximum(cuts[:-1, None], points[None, :, 0])
    return np.asarray((np.clip(cuts[1:, None] - lower, 0.0, None) * free).sum(axis=0))


def free_areas(archive: Array, costs: Array, reference: Array) -> tuple[Array, Array]:
    """Return the cuts [k + 1] of the gap axis and the free areas [k, n] between them.

    Slicing: between two neighbouring gaps of the archive the same of its points are below, so the
    volume there is an area times a height (While, Hingston, Barone and Huband, IEEE Trans. Evol.
    Comput. 10(1), 2006).

    `archive` [m, 3]; `costs` [n, 2] are (time, memory) of candidates. Between cut i and cut i + 1,
    `areas[i, j]` of the rectangle from candidate j to the reference is dominated by no point of
    the archive. The first cut is 0, or the least gap of the archive where that is below; the last
    is the reference's.
    """
    inside = archive[(archive < reference).all(axis=1)]
    inside = inside[np.lexsort(inside.T[::-1])]
    steps: list[float] = []
    areas = [_free(inside[:0, 1:], costs, reference[1:])]
    stairs = inside[:0, 1:]
    for gap in np.unique(inside[:, 0]):
        stairs = _staircase(np.concatenate([stairs, inside[inside[:, 0] == gap, 1:]]))
        steps.append(float(gap))
        areas.append(_free(stairs, costs, reference[1:]))
    floor = min([0.0, *steps])
    return np.array([floor, *steps, float(reference[0])]), np.array(areas)


def _staircase(corners: Array) -> Array:
    """Return the corners [m, 2] that no other is as good as, by rising time."""
    # By time: a corner is on the staircase if it lies lower than all before it (Kung, Luccio and
    # Preparata, J. ACM 22(4), 1975).
    corners = corners[np.lexsort(corners.T[::-1])]
    best = np.minimum.accumulate(corners[:, 1])
    return corners[np.r_[True, best[1:] < best[:-1]]]


def _free(stairs: Array, costs: Array, reference: Array) -> Array:
    """Return of each rectangle from `costs` [n, 2] to `reference` what `stairs` leave free: [n]."""
    # Left of the first step all of the height is free, above step i only what is below it; each
    # strip is cut to the candidate's own rectangle.
    edges = np.concatenate([[-np.inf], stairs[:, 0], reference[:1]])
    heights = np.concatenate([reference[1:], stairs[:, 1]])
    starts = np.maximum(edges[:-1, None], costs[None, :, 0])
    widths = np.clip(edges[1:, None] - starts, 0.0, None)
    return np.asarray((widths * np.clip(heights[:, None] - costs[None, :, 1], 0.0, None)).sum(0))
