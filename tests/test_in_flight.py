"""Trainings counted while several are under way: one at a time they are those counted elsewhere."""

from __future__ import annotations

import numpy as np

from benchmarks.scale.in_flight import SHARE, Knowing, Own, trainings
from benchmarks.search.__main__ import counts
from benchmarks.search.tables import floor, load, mean_problem

PROBLEM = mean_problem(load("gpt-sums-groups"))
SECONDS = np.array([1.0, 1.5, 2.0])


def test_one_at_a_time_takes_what_the_search_benchmark_counts() -> None:
    problem = mean_problem(load("tanh-mlp-masters"))
    found = trainings(problem, Own(problem), 1, SECONDS, 0, 40)
    assert found == counts(problem, "own", 0, 40)[0]
    known = trainings(problem, Knowing(problem), 1, SECONDS, 0, 40)
    assert known == floor(problem, (SHARE,))[0] < found


def test_what_is_best_ends_behind_others_that_are_under_way() -> None:
    """Who knows every result asks for the best first, but has no say in what ends first."""
    needed, under_way = floor(PROBLEM, (SHARE,))[0], 16
    found = [
        trainings(PROBLEM, Knowing(PROBLEM), under_way, SECONDS, seed, 40) for seed in range(20)
    ]
    assert needed <= min(found) < max(found) <= 2 * under_way
    assert np.mean(found) > 1.5 * needed


def test_what_is_never_reached_is_said_so() -> None:
    assert trainings(PROBLEM, Knowing(PROBLEM), 4, SECONDS, 0, 2) == 3
