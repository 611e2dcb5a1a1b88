"""The Pareto front against brute force over all pairs, and the knee against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysearch.search.hypervolume import Point, covers, dominates, knee, non_dominated, thinned

# Few values, so that points tie and repeat.
POINTS = st.integers(1, 3).flatmap(
    lambda axes: st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0, 2.0])] * axes), max_size=12)
)


@given(POINTS)
def test_the_front_is_what_no_other_point_dominates(points: list[Point]) -> None:
    expected = []
    for i, point in enumerate(points):
        rivals = [
            other
            for j, other in enumerate(points)
            if j != i and all(np.less_equal(other, point)) and (other != point or j < i)
        ]
        if not rivals:
            expected.append(i)
    assert non_dominated(points) == expected


@given(POINTS)
def test_dominating_is_being_nowhere_worse_and_somewhere_better(points: list[Point]) -> None:
    for a in points:
        for b in points:
            expected = bool(np.less_equal(a, b).all() and np.less(a, b).any())
            assert dominates(a, b) is expected


@given(POINTS.filter(bool))
def test_the_knee_is_the_first_nearest_to_the_ideal(points: list[Point]) -> None:
    table = np.array(points)
    spans = np.ptp(table, axis=0)
    scaled = (table - table.min(axis=0)) / np.where(spans > 0, spans, 1.0)
    distances = np.linalg.norm(scaled, axis=1)
    chosen = knee(points)
    assert distances[chosen] == pytest.approx(distances.min())
    assert not (distances[:chosen] < distances.min() * (1 + 1e-12)).any()


def test_the_knee_of_a_front_by_hand() -> None:
    """Over the ranges 4 and 10 the middle points are 0.25 and 0.8, and 0.5 and 0.3, away."""
    assert knee([(0.0, 10.0), (1.0, 8.0), (2.0, 3.0), (4.0, 0.0)]) == 2
    # An axis on which all are equal says nothing.
    assert knee([(7.0, 3.0), (7.0, 1.0), (7.0, 2.0)]) == 1


def test_there_is_no_knee_of_nothing() -> None:
    assert non_dominated([]) == []
    with pytest.raises(ValueError, match="knee of no points"):
        knee([])


def test_points_of_different_lengths_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        dominates((1.0, 2.0), (1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="zip"):
        knee([(1.0, 2.0), (1.0, 2.0, 3.0)])


# Gap (exact), speed as the front has it (below zero, told from 5 % on), memory (15 %).
TOLD = (0.0, 0.05, 0.15)
PRICED = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-4.0, -1.0), st.floats(0.5, 1.0)),
    max_size=12,
)


def worse(x: float, y: float) -> float:
    """How many times worse the value x of a modeled axis is than y."""
    return y / x if x < 0.0 else x / y


@given(PRICED)
def test_a_thinned_front_loses_less_than_can_be_told(points: list[Point]) -> None:
    kept = thinned(points, TOLD)
    for index, point in enumerate(points):
        near = [
            k
            for k in kept
            if points[k][0] <= point[0]
            and worse(points[k][1], point[1]) < 1.05
            and worse(points[k][2], point[2]) < 1.15
        ]
        # A kept point stands for itself alone, every other for one that is kept.
        assert near == [index] if index in kept else near


@given(POINTS)
def test_exact_axes_alone_are_not_thinned(points: list[Point]) -> None:
    told = (0.0,) * (len(points[0]) if points else 0)
    assert thinned(points, told) == non_dominated(points)
    assert all(covers(p, q, told) == (dominates(p, q) or p == q) for p in points for q in points)


def test_a_front_thinned_by_hand() -> None:
    """1.3 % of memory is no reason for a larger gap; 5 % of speed is; small steps do not add up."""
    best, leaner, faster = (0.0, -2.0, 0.8), (0.1, -2.0, 0.79), (0.2, -2.11, 0.8)
    assert thinned([best, leaner, faster], TOLD) == [0, 2]
    chain = [(0.1 * i, -2.0 * 1.02**i, 0.8) for i in range(6)]
    assert thinned(chain, TOLD) == [0, 3]
    # Of equal gaps the one that is better by what can be told stays: 2 % slower, 30 % leaner.
    assert thinned([(0.0, -2.0, 0.8), (0.0, -1.96, 0.5)], TOLD) == [1]


def test_the_knee_takes_an_axis_by_its_decades() -> None:
    """As logarithms the gaps 0 (as 1e-4), 1e-2 and 1 lie at 0, 0.5 and 1."""
    points = [(0.0, 1.0), (1e-4, 1.0), (1e-2, 0.5), (0.3, 0.4), (1.0, 0.0)]
    assert knee(points, 0) == 2 and knee(points) == 3
