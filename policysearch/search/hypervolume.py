"""Dominated volume of points with one measured and two exact axes, all three to be minimised.

A point is (gap, time, memory); the gap is on any rising scale. Volumes are exact: the space is cut
at the gaps of the points, and between two cuts what is dominated is a staircase in time and memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policysearch.search.front import non_dominated

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
    corners = corners[np.lexsort(corners.T[::-1])]
    best = np.minimum.accumulate(corners[:, 1])
    return corners[np.r_[True, best[1:] < best[:-1]]]


def _free(stairs: Array, costs: Array, reference: Array) -> Array:
    """Return of each rectangle from `costs` [n, 2] to `reference` what `stairs` leave free: [n]."""
    edges = np.concatenate([[-np.inf], stairs[:, 0], reference[:1]])
    heights = np.concatenate([reference[1:], stairs[:, 1]])
    starts = np.maximum(edges[:-1, None], costs[None, :, 0])
    widths = np.clip(edges[1:, None] - starts, 0.0, None)
    return np.asarray((widths * np.clip(heights[:, None] - costs[None, :, 1], 0.0, None)).sum(0))
