"""The searcher: its expected gains against sampling, its belief against data, its asks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from benchmarks.search.__main__ import counts, spent
from benchmarks.search.tables import floor, load, mean_problem, problems, with_idle
from policysearch.search.acquisition import FLOAT32, Yardstick, expected_improvements, regret
from policysearch.search.goals import Goal
from policysearch.search.hypervolume import free_areas, improvements
from policysearch.search.posterior import Belief, Sensitivity
from policysearch.search.searcher import BEYOND_EVERY, Listed, Searcher
from policysearch.space.options import Decisions, Option

OPTIONS = (
    Option("float32"),
    Option("bfloat16", 2.0**-7),
    Option("stored", 2.0**-7, 2.0**-7),
    Option("float8", 2.0**-3),
)
COSTS = np.array([1.0, 0.5, 0.4, 0.3])
GAPS = np.array([0.0, 2e-5, 1e-3, 4e-3])
PLACES = np.array([1.0, 3.0, 0.5, 1.5])
MEASURE = Yardstick(0.9, 0.9)


def every_row(places: int, modifiers: tuple[int, ...] = ()) -> np.ndarray:
    ranges = [range(len(OPTIONS))] * places + [range(count) for count in modifiers]
    return np.array(list(itertools.product(*ranges)), dtype=np.int64)[1:]


def costs_of(rows: np.ndarray) -> np.ndarray:
    """Time and memory of rows of four places: the second is dearer where parameters are kept."""
    time = COSTS[rows[:, :4]].mean(axis=1)
    return np.column_stack([time, np.where(rows[:, :4] == 2, 0.5, 0.7).mean(axis=1)])


def gaps_of(rows: np.ndarray) -> np.ndarray:
    return np.asarray((GAPS[rows[:, :4]] * PLACES).sum(axis=1))


def searcher(modifiers: tuple[int, ...] = ()) -> tuple[Searcher, np.ndarray]:
    rows = every_row(4, modifiers)
    decisions = Decisions((OPTIONS,) * 4, modifiers)
    start = [tuple([option] * 4 + [0] * len(modifiers)) for option in (1, 2, 3)]
    first = [(row, tuple(costs_of(np.array([row]))[0].tolist())) for row in start]
    return Searcher(decisions, Listed(rows, costs_of(rows)), MEASURE, first), rows


def asked(steps: int, batch: int = 1, modifiers: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    search, _ = searcher(modifiers)
    found = []
    for _ in range(steps):
        for row, costs in search.ask(batch):
            found.append(row)
            search.tell(row, costs, float(gaps_of(np.array([row]))[0]))
    return found


def test_an_expected_improvement_is_the_mean_over_samples() -> None:
    rng = np.random.default_rng(0)
    archive = MEASURE.points(10.0 ** rng.uniform(-5, -2, 6), rng.uniform(0.3, 0.9, (6, 2)))
    costs = rng.uniform(0.2, 0.8, (5, 2))
    beliefs = [
        Belief(0.25, rng.uniform(-1.0, 5.0, 5), rng.uniform(0.2, 2.0, 5)),
        Belief(0.75, rng.uniform(-1.0, 5.0, 5), rng.uniform(0.2, 2.0, 5)),
    ]
    found = expected_improvements(beliefs, *free_areas(archive, costs, MEASURE.corner), MEASURE)
    sampled = np.zeros(5)
    for belief in beliefs:
        draws = rng.normal(belief.mean, belief.sd, (1500, 5))
        gaps = np.sign(draws) * np.expm1(np.abs(draws)) * MEASURE.smallest_gap
        gains = [improvements(MEASURE.points(g, costs), archive, MEASURE.corner) for g in gaps]
        sampled += belief.weight * np.mean(gains, axis=0)
    assert (sampled > 1e-3).any()
    np.testing.assert_allclose(found, sampled, rtol=0.1, atol=3e-4)


def test_the_belief_is_sure_of_what_was_trained_and_right_about_what_was_not() -> None:
    rows = every_row(4)
    told = np.random.default_rng(1).choice(len(rows), 40, replace=False)
    gaps = gaps_of(rows)
    belief = Sensitivity(Decisions((OPTIONS,) * 4), rows[told], gaps[told], 1e-4, 0.05)
    scaled = np.log1p(gaps / 1e-4)
    for each in belief.predict(rows):
        assert np.abs(each.mean - scaled)[told].max() < 0.2
        assert np.sqrt(np.mean((each.mean - scaled) ** 2)) < 0.1 * scaled.std()
    assert belief.weights.sum() == pytest.approx(1.0)


def test_before_any_training_float32_alone_is_known() -> None:
    decisions = Decisions((OPTIONS,) * 4)
    belief = Sensitivity(decisions, np.empty((0, 4), dtype=np.int64), np.empty(0), 1e-4, 0.05)
    for each in belief.predict(np.array([[0, 0, 0, 0], [3, 3, 3, 3]])):
        assert abs(each.mean[0]) < 1e-6 and each.sd[0] < 0.05
        assert each.sd[1] > 1.0


def test_nothing_is_asked_for_twice_and_the_first_of_the_start_comes_first() -> None:
    found = asked(30)
    assert found[0] == (1,) * 4 and (2,) * 4 in found[:3]
    assert len(set(found)) == 30
    assert asked(30) == found


def test_of_mirrored_policies_the_first_is_asked_for_whatever_rounding_says() -> None:
    """Layers alike in costs and gaps tie; what was told before moves the last bits of both."""
    rows = every_row(4)
    time = COSTS[rows].mean(axis=1)
    costs, decisions = np.column_stack([time, time]), Decisions((OPTIONS,) * 4)
    price = dict(zip(map(tuple, rows.tolist()), map(tuple, costs.tolist()), strict=True))
    ties = 0
    for seed in range(20):
        search = Searcher(decisions, Listed(rows, costs), MEASURE)
        gaps = 10.0 ** np.random.default_rng(seed).uniform(-5.0, -2.0, 3)
        told: list[tuple[tuple[int, ...], float]]
        told = [((2, 2, 2, 2), gaps[0]), ((3, 3, 3, 3), gaps[1]), ((1, 1, 1, 1), gaps[2])]
        for row, gap in told:
            search.tell(row, price[row], float(gap))
        ((row, _),) = search.ask()
        # The net read backwards has the same neighbours.
        assert row <= row[::-1]
        ties += row != row[::-1]
    assert ties > 5


def test_a_member_of_the_start_that_promises_nothing_waits() -> None:
    """Where all in float8 is as good as float32, bfloat16 is slower and no smaller."""
    search, _ = searcher()
    rows = np.array([(3,) * 4])
    search.tell((3,) * 4, tuple(costs_of(rows)[0].tolist()), 0.0)
    found = [row for row, _ in search.ask(6)]
    assert (2,) * 4 in found and (1,) * 4 not in found
    assert 0.0 < search.expected_gain < 1.0


def test_the_whole_start_can_be_had_first() -> None:
    search, _ = searcher()
    found = [row for row, _ in search.ask(3, whole_start=True)]
    assert sorted(found) == [(1,) * 4, (2,) * 4, (3,) * 4]
    assert {row for row, _ in searcher()[0].ask(3)} != set(found)


def test_what_is_best_within_a_gap_at_the_corner_itself_promises_something() -> None:
    rows = np.array([[1] * 4, [3] * 4])
    inner, corner = (0.5, 0.5), (0.4, MEASURE.memory)
    search = Searcher(Decisions((OPTIONS,) * 4), Listed(rows, np.array([inner, corner])), MEASURE)
    search.tell((1,) * 4, inner, 1e-5)
    assert search.ask() == [((3,) * 4, corner)] and search.expected_gain > 0.0


@pytest.mark.parametrize(("inner", "row"), [(None, (1, 1, 1, 2)), (Yardstick(0.41, 0.9), (3,) * 4)])
def test_what_is_within_a_corner_further_in_counts_as_a_share_of_what_can_be(
    inner: Yardstick | None, row: tuple[int, ...]
) -> None:
    rows = np.array([[1] * 4, [1, 1, 1, 2], [3] * 4])
    pool = Listed(rows, np.array([(0.5, 0.5), (0.45, 0.45), (0.4, 0.45)]))
    search = Searcher(Decisions((OPTIONS,) * 4), pool, MEASURE, inner=inner)
    search.tell((1,) * 4, (0.5, 0.5), 1e-4)
    assert [asked for asked, _ in search.ask()] == [row]


SLOWER = ((2, 1, 1, 1), (0.95, 0.1))
"""Beyond the corner: slower than all that is within, and a fifth of its size."""


@pytest.mark.parametrize(
    ("told", "promising", "more", "beyond"),
    [
        (BEYOND_EVERY, False, {"outer": FLOAT32}, True),
        (BEYOND_EVERY, False, {}, False),
        (BEYOND_EVERY, True, {"outer": FLOAT32}, False),
        (BEYOND_EVERY - 1, False, {"outer": FLOAT32}, False),
        (BEYOND_EVERY, False, {"outer": FLOAT32, "inner": Yardstick(0.6, 0.6)}, False),
        (BEYOND_EVERY, False, {"outer": FLOAT32, "goal": Goal("time", gap=1e-2)}, False),
    ],
)
def test_where_little_is_promised_each_eighth_ask_is_for_what_the_outer_corner_counts(
    told: int, promising: bool, more: dict[str, Any], beyond: bool
) -> None:
    """Not where more than a hundredth of the volume is promised, and not each other ask."""
    within = (1, 1, 1, 3), ((0.45, 0.5) if promising else (0.4999, 0.5))
    decisions, (rows, costs) = Decisions((OPTIONS,) * 4), zip(within, SLOWER, strict=True)
    search = Searcher(decisions, Listed(np.array(rows), np.array(costs)), MEASURE, **more)
    known = dict.fromkeys([(1,) * 4, *itertools.product((0, 1), repeat=4)])
    for row in list(known)[:told]:
        search.tell(row, (0.5, 0.5), 1e-3)
    assert [asked for asked, _ in search.ask()] == [(SLOWER if beyond else within)[0]]


def test_a_start_that_the_pool_does_not_hold_is_asked_for_where_it_promises_most() -> None:
    decisions, inner, outer = Decisions((OPTIONS,) * 4), (0.5, 0.5), (0.8, 0.8)
    pool = Listed(np.array([[2] * 4]), np.array([outer]))
    start = [((1,) * 4, outer), ((3,) * 4, inner)]
    search = Searcher(decisions, pool, MEASURE, start)
    search.tell((1,) * 4, outer, 0.0)
    assert [row for row, _ in search.ask(2)] == [(3,) * 4, (2,) * 4]


def test_float32_alone_weighs_nothing() -> None:
    search, _ = searcher()
    search.tell((0,) * 4, (1.0, 1.0), 0.0)
    assert [row for row, _ in search.ask()] == [(1,) * 4]


def test_what_is_expected_is_what_the_most_promising_promises() -> None:
    """Also where a member of the start is asked for that promises less than another."""
    gains = []
    for whole in (True, False):
        search, _ = searcher()
        rows = np.array([(3,) * 4, (2,) * 4])
        for row, costs in zip(rows.tolist(), costs_of(rows).tolist(), strict=True):
            search.tell(tuple(row), tuple(costs), 0.0)
        ((row, _),) = search.ask(1, whole_start=whole)
        gains.append(search.expected_gain)
        assert (row == (1,) * 4) == whole
    assert gains[0] == gains[1] > 0.0


def test_it_ends_with_the_space() -> None:
    rows = every_row(4)[::6]
    search = Searcher(Decisions((OPTIONS,) * 4), Listed(rows, costs_of(rows)), MEASURE)
    assert len(search.ask(1000)) == len(rows) > 40
    assert search.ask(1) == []


def test_a_batch_does_not_repeat_itself_and_believes_itself() -> None:
    found = asked(4, batch=4)
    assert len(set(found)) == 16
    search, _ = searcher()
    first = search.ask(8)
    for row, costs in first[:3]:
        search.tell(row, costs, float(gaps_of(np.array([row]))[0]))
    assert {row for row, _ in search.ask(4)}.isdisjoint(row for row, _ in first)


def test_what_is_told_in_another_order_is_asked_alike() -> None:
    rows = every_row(4)[[5, 20, 77, 140, 200]]
    following = []
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1]):
        search, _ = searcher()
        for row, costs in zip(rows[order], costs_of(rows[order]), strict=True):
            search.tell(tuple(row.tolist()), tuple(costs.tolist()), float(gaps_of(row[None])[0]))
        following.append([row for row, _ in search.ask(6)])
    assert following[0] == following[1]


def test_a_diverged_policy_is_learned_from() -> None:
    """Where 8 bits in the second layer diverge, nothing else with them is worth a training."""
    search, _ = searcher()
    after = []
    for step in range(25):
        ((row, costs),) = search.ask()
        after += [row] if step >= 15 else []
        bad = row[1] == 3
        search.tell(row, costs, 100.0 if bad else float(gaps_of(np.array([row]))[0]))
    assert sum(row[1] == 3 for row in after) <= 2


def test_a_modifier_that_does_nothing_costs_little() -> None:
    plain, with_it = asked(14), asked(16, modifiers=(21,))
    corner, every = MEASURE.corner, every_row(4)
    whole = MEASURE.volume(gaps_of(every), costs_of(every))
    assert corner[0] == 1.0

    def share(found: list[tuple[int, ...]]) -> float:
        rows = np.array(found)
        return MEASURE.volume(gaps_of(rows), costs_of(rows)) / whole

    assert share(with_it) >= min(share(plain), 0.99)


@pytest.mark.parametrize(
    ("name", "most"), [("char-transformer", (6, 12)), ("mlp-digits-0.1.0", (9, 15))]
)
def test_the_front_of_a_table_is_found(name: str, most: tuple[int, int]) -> None:
    problem = mean_problem(load(name))
    found, least = counts(problem, "own", 0, 40), floor(problem, (0.95, 0.99))
    assert least[0] <= found[0] <= most[0] and least[1] <= found[1] <= most[1]


def test_the_fastest_within_a_gap_is_found_where_its_memory_is_the_corners() -> None:
    """It adds next to nothing to the volume, and a user with that gap would miss it."""
    problem = mean_problem(load("mlp-digits-0.1.0"))
    found = spent(problem, "own", 0, 16).found
    lost = regret(problem.true, problem.table.costs, [*found, *np.flatnonzero(problem.table.exact)])
    assert lost[:, 0].mean() < 0.005 and lost[:, 0].max() < 0.03


@pytest.mark.parametrize("name", ["transformer-ops", "tanh-mlp-scales", "tanh-mlp-masters"])
def test_four_asked_for_together_find_as_much_as_one_at_a_time(name: str) -> None:
    """Of the ladder asked for blind, members that promise little would be trained beside others.

    The first four are asked for before anything is told, where one at a time may take two.
    """
    problem = mean_problem(load(name))
    alone, together = (counts(problem, "own", 0, 20, batch)[0] for batch in (1, 4))
    assert floor(problem, (0.95,))[0] <= together <= max(1.3 * alone, 4)


def test_a_decision_that_does_nothing_costs_next_to_nothing_on_a_table() -> None:
    """Gaps as small as the noise make variants of a good policy look like as many new chances."""
    table = load("gpt-sums-groups")
    plain, idle = (
        counts(mean_problem(each), "own", 0, 20) for each in (table, with_idle(table, 8))
    )
    assert plain[1] <= 20 and idle[1] <= 1.1 * plain[1]


def test_variants_that_came_out_alike_are_not_asked_for_again_and_again() -> None:
    """Where all that is left promises next to nothing, as on this seed after ten."""
    table = load("transformer-ops")
    plain, idle = (
        counts(problems(each)[1], "own", 0, 30) for each in (table, with_idle(table, 21))
    )
    assert plain[1] <= 20 and idle[1] <= 1.2 * plain[1]


def test_neighbours_that_saved_a_rounding_say_so_of_other_neighbours() -> None:
    """Two layers in float8 cost less than their sum; so, it is thought, do the two after them."""
    decisions = Decisions((OPTIONS,) * 6)
    rows = [(3, 0, 0, 0, 0, 0), (0, 3, 0, 0, 0, 0), (0, 0, 0, 3, 0, 0), (0, 0, 0, 0, 3, 0)]
    pair, apart = (3, 3, 0, 0, 0, 0), [(0, 0, 0, 3, 3, 0), (0, 3, 0, 0, 3, 0)]
    means = []
    for both in (2e-2, 1e-2):
        told, gaps = np.array([*rows, pair]), np.array([1e-2] * 4 + [both])
        beliefs = Sensitivity(decisions, told, gaps, 1e-4, 0.05).predict(np.array(apart))
        means.append(sum(each.weight * each.mean for each in beliefs))
    near, far = np.array(means[0]) - means[1]
    assert near > 2.0 * abs(far) and near > 0.1
