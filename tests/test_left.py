"""What may be left: its draws against what is believed, failures by enumeration, and its stops."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaln

from benchmarks.search.goals import best_of
from benchmarks.search.stops import Stop, drawn, stop
from benchmarks.search.tables import load, mean_problem
from policysearch.search.acquisition import Yardstick
from policysearch.search.failures import BY_CHANCE, Failures, _chances, causes_of, failures
from policysearch.search.goals import Goal, Left
from policysearch.search.left import NOTHING, left_of_front, left_of_goal
from policysearch.search.posterior import Sensitivity
from policysearch.space.options import Decisions, Option
from policysearch.study.aim import Aim
from policysearch.study.optuna_view import TrialView
from policysearch.study.specification import load_spec
from policysearch.study.stopping import due, settled
from policysearch.study.study import run_study
from tests.studies import replaced_training, write_study
from tests.test_goals import GAIN, WIDE, summed

OPTIONS = (Option("float32"), Option("bfloat16", 2.0**-7), Option("float8", 2.0**-3))
DECISIONS = Decisions((OPTIONS,) * 2, ())
ROWS = np.array(list(itertools.product(range(3), repeat=2)), dtype=np.int64)[1:]
COSTS = np.array([1.0, 0.6, 0.4])[ROWS].mean(axis=1)[:, None] * np.ones(2)
MEASURE = Yardstick(0.95, 0.95)


def belief() -> Sensitivity:
    told = np.array([[1, 1], [2, 0]])
    return Sensitivity(DECISIONS, told, np.array([1e-4, 3e-3]), 1e-4, 0.05)


def test_draws_of_all_gaps_are_as_each_is_believed() -> None:
    found = belief().drawn(ROWS, 4000, np.random.default_rng(0))
    joints = belief().joint(ROWS, ROWS[:0], 0.0)
    mean = sum(each.others.weight * each.mean for each in joints)
    square = sum(
        each.others.weight * (each.covariance + np.outer(each.mean, each.mean)) for each in joints
    )
    covariance = square - np.outer(mean, mean)
    sd = np.sqrt(covariance.diagonal())
    np.testing.assert_allclose(found.mean(axis=0), mean, atol=0.1)
    np.testing.assert_allclose(found.std(axis=0), sd, rtol=0.1, atol=0.02)
    together = covariance / np.outer(sd, sd)
    np.testing.assert_allclose(np.corrcoef(found.T), together, atol=0.15)
    assert together[1, 4] > 0.9  # Float8 in the second place is in both: not each by itself.


def no_failures() -> Failures:
    return failures(DECISIONS, ROWS[:0], ROWS, 128, np.random.default_rng(0))


def known(*points: tuple[float, float, float]) -> np.ndarray:
    return np.array(points).reshape(-1, 3)


def test_prices_alone_leave_nothing() -> None:
    rng, failing = np.random.default_rng(0), no_failures()
    goal, given = Goal("time", gap=1e-3), (belief(), failing, ROWS, COSTS)
    best = known((0.4, 0.4, 1e-4))
    assert left_of_goal(goal, *given, best, MEASURE, rng) == NOTHING
    assert left_of_goal(replace(goal, memory=0.3), *given, known(), MEASURE, rng) == NOTHING
    assert left_of_front(*given, known((0.4, 0.4, 0.0)), MEASURE, rng) == NOTHING
    some = left_of_goal(goal, *given, known((0.6, 0.6, 1e-4)), MEASURE, rng)
    assert 0.0 < some.share <= 1.0 - 0.4 / 0.6 + 1e-9 and some.chance > 0.05
    assert left_of_front(*given, known((0.6, 0.6, 1e-4)), MEASURE, rng).share > 0.05


def enumerated(failed: np.ndarray, trained: np.ndarray, combined: bool) -> np.ndarray:
    """Return the chance of each of ROWS to fail, over all that may be deadly."""
    has, prior = causes_of(DECISIONS, ROWS, combined).astype(int), _chances(DECISIONS, combined)
    here, there = (causes_of(DECISIONS, each, combined).astype(int) for each in (failed, trained))
    deadly = np.array(list(itertools.product((0, 1), repeat=len(prior))), np.int8)
    deadly = deadly[~deadly[:, there.any(axis=0)].any(axis=1)]
    alpha, beta = BY_CHANCE
    a = alpha + (deadly @ here.T == 0).sum(axis=1)
    b = beta + len(trained)
    weight = np.exp(betaln(a, b) - betaln(alpha, beta))
    weight *= np.where(deadly, prior, 1.0 - prior).prod(axis=1)
    dead = np.where(deadly @ has.T > 0, 1.0, (a / (a + b))[:, None])
    return np.asarray(weight @ dead / weight.sum())


@pytest.mark.parametrize(
    ("failed", "trained", "combined"),
    [
        ([], [], False),
        ([(2, 2)], [], False),
        ([(2, 2), (1, 1)], [], False),
        ([(2, 2), (1, 2)], [(0, 1)], False),
        ([(1, 1)], [(0, 1), (1, 0)], False),
        ([(2, 1), (1, 2)], [(2, 2), (1, 0)], True),
    ],
)
def test_failures_are_those_of_all_that_may_be_deadly(
    failed: Iterable[tuple[int, int]], trained: Iterable[tuple[int, int]], combined: bool
) -> None:
    bad, good = (np.array(list(each), np.int64).reshape(-1, 2) for each in (failed, trained))
    rng = np.random.default_rng(1)
    found = failures(DECISIONS, bad, good, 20_000, rng, combined)
    exact = enumerated(bad, good, combined)
    np.testing.assert_allclose(found.chances(ROWS), exact, atol=0.02)
    np.testing.assert_allclose(found.dead(ROWS, rng).mean(axis=0), exact, atol=0.02)


def stops_of(name: str, goals: Iterable[Goal | None], seeds: Iterable[int] = (3, 4)) -> list[Stop]:
    return [stop(each, goal, 30) for each in drawn(name, list(seeds)) for goal in goals]


def test_flat_prices_stop_at_once() -> None:
    found = stops_of("flat-price", (None, Goal("time", gap=1e-3), Goal("memory", gap=1e-3)))
    assert [(each.trainings, each.stopped, each.chance) for each in found] == [(0, True, 0.0)] * 6


def test_where_nothing_works_few_trainings_say_so() -> None:
    closest = Goal("gap", memory=0.75)
    goals = None, Goal("time", gap=1e-3), Goal("memory", gap=1e-2), closest
    for each in stops_of("nothing-works", goals, (3,)):
        assert each.stopped and 2 <= each.trainings <= 5 and each.chance < 0.1 and each.holds
    # What failed is none of the closest, though it is within the peak.
    problem = drawn("nothing-works", (3,))[0]
    assert closest.affordable(problem.table.costs).sum() > 100
    assert best_of(problem, closest, list(range(len(problem.true)))) == np.inf


@pytest.mark.parametrize("seed", [21, *(pytest.param(n, marks=pytest.mark.slow) for n in (28, 31))])
def test_nothing_is_not_said_where_one_layer_alone_fails(seed: int) -> None:
    """All uniform policies fail there; of single layers four in five train."""
    (found,) = stops_of("deadly-layer", (None,), (seed,))
    assert found.stopped and found.holds and found.trainings > 5


def test_what_is_left_is_no_more_than_was_said() -> None:
    goals = None, Goal("time", gap=1e-3)
    found = [stop(mean_problem(load("tanh-mlp-masters")), goal, 30) for goal in goals]
    for name in ("deadly-layer", "not-monotone"):
        found += stops_of(name, goals[1:], (3,))
    ended = [each for each in found if each.stopped]
    assert len(ended) >= 3 and sum(each.holds for each in ended) >= 0.9 * len(ended)
    assert max(each.trainings for each in ended) > 3


def test_what_is_left_is_looked_at_a_tenth_as_often_later() -> None:
    assert [place for place in range(60) if due(place)][:24] == [*range(20), 20, 22, 24, 26]
    assert sum(map(due, range(1000))) < 140


AIM = Aim(Goal("time", gap=1e-3), "fastest gap<=0.001", left=0.05)
WORDS = [
    (Left(0.2, 0.5), AIM, True, ""),
    (Left(0.0, 0.0), AIM, True, "settled: by price alone nothing else can be better"),
    (
        Left(0.03, 0.2),
        AIM,
        True,
        "settled: at 95 % no other policy is more than 3.0% faster than the best",
    ),
    (
        Left(0.0, 0.044),
        AIM,
        False,
        "nothing found after 2; the chance that something is left is below 0.044",
    ),
    (
        Left(0.0, 0.05),
        replace(AIM, asked=False),
        False,
        "nothing found after 2; the chance that something is left is below 0.05",
    ),
    (
        Left(0.041, 1.0),
        replace(AIM, asked=False),
        True,
        "settled: at 95 % at most 4.1% of the volume is left",
    ),
]


@pytest.mark.parametrize(("left", "aim", "found", "words"), WORDS)
def test_the_end_is_said_in_words(left: Left, aim: Aim, found: bool, words: str) -> None:
    told = [TrialView({}, 0.0, 1.0, 1.0), TrialView({}, 0.1, 2.0, 0.5)]
    told.append(TrialView({}, 0.0 if found else 0.2, 1.5, 0.6))
    assert settled(left, aim, told) == words


def test_a_study_ends_by_what_is_left(tmp_path: Path) -> None:
    spec = load_spec(write_study(tmp_path, GAIN, *WIDE, name="wide.toml"))
    spec = replace(spec, study=replace(spec.study, trials=60))
    with replaced_training(summed):
        results = run_study(spec, tmp_path / "wide", processes=0)
    assert results.stopped.startswith("settled: at 95 %") and 4 < len(results.trials) < 40
