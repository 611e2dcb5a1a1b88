"""The Pareto front against brute force over all pairs, and the knee against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysearch.search.front import Point, dominates, knee, non_dominated

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
