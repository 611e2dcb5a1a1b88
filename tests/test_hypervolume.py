"""Dominated volumes against brute force over a grid, and what is measured with them by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysearch.search.acquisition import BUDGETS, Yardstick, gain, regret, yardstick
from policysearch.search.hypervolume import front_of, hypervolume, improvements

# Whole numbers, so that a grid of unit cells counts volumes exactly; some lie outside.
POINTS = st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=8)
CORNER = np.array([5.0, 4.0, 5.0])


def as_array(points: list[tuple[int, ...]]) -> np.ndarray:
    return np.array(points, dtype=float).reshape(len(points), 3)


def counted(points: np.ndarray) -> float:
    """The cells of the grid below the corner that some point dominates."""
    cells = np.stack(np.meshgrid(*[np.arange(int(c)) for c in CORNER], indexing="ij"), -1)
    return float((points[:, None] <= cells.reshape(-1, 3)).all(axis=2).any(axis=0).sum())


@given(POINTS)
def test_the_volume_is_that_of_the_cells(points: list[tuple[int, ...]]) -> None:
    assert hypervolume(as_array(points), CORNER) == counted(as_array(points))


@given(POINTS, POINTS)
def test_an_improvement_is_the_volume_added(
    points: list[tuple[int, ...]], archive: list[tuple[int, ...]]
) -> None:
    new, old = as_array(points), as_array(archive)
    expected = [counted(np.concatenate([old, point[None]])) - counted(old) for point in new]
    assert improvements(new, old, CORNER).tolist() == expected


@given(POINTS, POINTS)
def test_the_front_alone_says_what_is_free(
    points: list[tuple[int, ...]], archive: list[tuple[int, ...]]
) -> None:
    new, old = as_array(points), as_array(archive)
    front = front_of(old)
    assert counted(front) == counted(old)
    assert improvements(new, front, CORNER).tolist() == improvements(new, old, CORNER).tolist()


def test_the_volume_of_two_boxes_by_hand() -> None:
    points = np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0]])
    assert hypervolume(points, np.ones(3)) == pytest.approx(0.75)


MEASURE = Yardstick(time=0.5, memory=0.8)


def test_the_gap_axis_goes_from_nothing_to_the_largest_gap() -> None:
    scaled = MEASURE.scaled(np.array([-1.0, 0.0, 1e-4, 0.05, 100.0]))
    assert scaled[[0, 1, 3, 4]].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert scaled[2] == pytest.approx(np.log(2.0) / np.log(501.0))


def test_gain_is_what_the_presets_do_not_dominate() -> None:
    gaps = np.array([0.0, 0.0, 0.05])
    costs = np.array([[0.4, 0.4], [0.25, 0.4], [0.1, 0.1]])
    assert gain(MEASURE, gaps, costs, [0]) == pytest.approx(0.15 * 0.4)
    # The last has the largest gap, so it counts for nothing.
    assert gain(MEASURE, gaps, costs, [0, 1]) == 0.0


def test_the_corner_is_the_worst_preset_that_counts_and_one_resolution_more() -> None:
    # The last is beaten on both axes by more than can be told, the third on one only.
    found = yardstick(np.array([[0.25, 0.55], [0.26, 0.6], [0.22, 0.64], [0.4, 0.8]]))
    assert found.time == pytest.approx(0.26 * 1.05)
    assert found.memory == pytest.approx(0.64 * 1.15)
    with pytest.raises(ValueError, match="no presets"):
        yardstick(np.empty((0, 2)))


def test_regret_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    gaps = 10.0 ** rng.uniform(-6, -1, 40)
    costs = rng.uniform(0.2, 1.0, (40, 2))
    gaps[0] = 0.0
    found = [0, 3, 5, 8]
    result = regret(gaps, costs, found)
    assert result.shape == (24, 2) and (result > 0).any()
    for row, budget in zip(result, BUDGETS, strict=True):
        for axis in range(2):
            best = min(costs[i, axis] for i in range(40) if gaps[i] <= budget)
            mine = min(costs[i, axis] for i in found if gaps[i] <= budget)
            assert row[axis] == pytest.approx(mine / best - 1)


def test_regret_where_nothing_was_found_and_where_there_is_nothing() -> None:
    result = regret(np.array([1e-3, 1.0]), np.ones((2, 2)), [1])
    none, missed = np.array(BUDGETS) < 1e-3, np.array(BUDGETS) >= 1e-3
    assert (result[none] == 0).all() and np.isinf(result[missed]).all()
    assert none.any() and missed.any()
