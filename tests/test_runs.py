"""Which run is spent next: short ones where they rank as whole ones do, new seeds for the front."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from benchmarks.search.__main__ import counts, noisy_shares
from benchmarks.search.runs import Run, RunSearcher
from benchmarks.search.tables import load, problems
from policysearch.search.acquisition import Yardstick
from policysearch.search.fidelity import (
    LEAST_CORRELATION,
    RUNS_PER_PLACE,
    SHORT,
    VOLUME_SHARE,
    beyond_prices,
    promising,
    rank_correlation,
    ranks,
    ranks_alike,
    short_share,
)
from policysearch.search.searcher import Listed, Searcher
from policysearch.space.options import Decisions
from tests.test_searcher import MEASURE, OPTIONS, costs_of, every_row, gaps_of

PLACES = 4


def run_searcher(seeds: tuple[int, ...] = (0,), short: float = SHORT) -> RunSearcher:
    rows = every_row(PLACES)
    decisions = Decisions((OPTIONS,) * PLACES)
    listed = Listed(rows, costs_of(rows))
    return RunSearcher(lambda: Searcher(decisions, listed, MEASURE), PLACES, MEASURE, seeds, short)


def spend(search: RunSearcher, count: int, early: Callable[[float, float], float]) -> list[Run]:
    """Tell of `count` runs whose gap after a share of the steps is `early(gap, share)`."""
    found = []
    for _ in range(count):
        (run,) = search.ask()
        gap = float(gaps_of(np.array([run.row]))[0])
        shares = [share for share in (0.125, SHORT, 1.0) if share <= run.share]
        search.tell(run, {share: early(gap, share) for share in shares})
        found.append(run)
    return found


def test_short_runs_that_rank_are_kept_and_the_front_is_continued() -> None:
    search = run_searcher()
    runs = spend(search, 40, lambda gap, share: gap * (3.0 - share))
    first = RUNS_PER_PLACE * PLACES
    assert search.carries and {run.share for run in runs[:first]} == {SHORT}
    continued = [run.row for run in runs[first:] if run.share == 1.0]
    assert continued and set(continued) <= {run.row for run in runs}
    assert len(set(continued)) == len(continued)
    assert search.rank_correlations == pytest.approx((1.0, 1.0))
    whole = {run.row for run in runs if run.share == 1.0}
    assert {row for row in search.proposed()} <= whole | {runs[-1].row}


def test_short_runs_that_do_not_rank_are_given_up_at_once() -> None:
    search = run_searcher()
    noise = np.random.default_rng(0)
    runs = spend(search, 12, lambda gap, share: gap if share == 1.0 else noise.uniform(0.0, 0.05))
    assert not search.carries
    assert {run.share for run in runs[:4]} == {SHORT} and {run.share for run in runs[6:]} == {1.0}
    expected = {run.row for run in runs if run.share == 1.0}
    assert set(search.proposed()) <= expected


def test_a_front_that_short_runs_get_wrong_is_seen_by_its_own_whole_runs() -> None:
    search = run_searcher()
    spend(search, 60, lambda gap, share: gap if share < 1.0 else 0.05 - gap)
    before, whole = search.rank_correlations
    assert before == pytest.approx(1.0) and whole < 0.9 and not search.carries


def test_what_looks_propose_has_nearly_all_of_the_volume() -> None:
    rng = np.random.default_rng(3)
    gaps, costs = 10.0 ** rng.uniform(-5.0, -1.3, 40), rng.uniform(0.3, 1.2, (40, 2))
    measure = Yardstick(1.0, 1.0)
    found = promising(measure, gaps, costs)
    each = [measure.volume(gaps[[place]], costs[[place]]) for place in range(40)]
    assert found[0] == int(np.argmax(each)) and len(set(found)) == len(found) < 40
    whole = measure.volume(gaps, costs)
    assert measure.volume(gaps[found], costs[found]) >= VOLUME_SHARE * whole
    assert measure.volume(gaps[found[:-1]], costs[found[:-1]]) < VOLUME_SHARE * whole
    assert promising(measure, gaps[:0], costs[:0]) == []


def test_short_runs_are_for_what_has_learned_by_then() -> None:
    assert short_share(2.3, 1.4, 0.2) == SHORT
    assert short_share(2.3, 2.2, 0.2) == 1.0
    assert short_share(2.3, 2.5, 2.4) == 1.0  # It learns nothing.
    assert short_share(2.0, 2.0, 2.0) == short_share(3.0, 2.001, 0.0) == 1.0
    assert short_share(3.0, 2.0, 0.0) == SHORT  # A third of it, no less.


def test_how_short_runs_rank_is_known_from_five_policies_on() -> None:
    rng = np.random.default_rng(0)
    for count in range(12):
        pairs = list(zip(rng.permutation(count), rng.permutation(count), strict=True))
        apart = sum(float(a - b) ** 2 for a, b in pairs)
        known = 1 - 6 * apart / (count * (count**2 - 1)) if count > 4 else np.nan
        assert rank_correlation(pairs) == pytest.approx(known, nan_ok=True)
    for same in ([(1.0, x) for x in range(5)], [(x, 1.0) for x in range(5)]):
        assert rank_correlation(same) == 0.0


def test_ranks_are_those_of_scipy_ties_and_infinities_too() -> None:
    rng = np.random.default_rng(1)
    for count in (5, 40):
        first, second = rng.integers(0, 9, (2, count)).astype(float)
        first[0] = np.inf
        np.testing.assert_array_equal(ranks(first), rankdata(first))
        known = spearmanr(first, second).statistic
        assert rank_correlation([*zip(first, second, strict=True)]) == pytest.approx(known)


def test_what_views_and_searches_need_is_imported_without_what_takes_longest() -> None:
    needed = "policysearch.report.table", "policysearch.study.study", "policysearch.commands.run"
    code = f"import sys, {', '.join(needed)}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"scipy.stats", "scipy.optimize", "matplotlib", "torch", "pandas", "dask"}
    assert not heavy & set(run.stdout.split())


def test_asked_together_runs_are_different_and_outstanding_ones_count() -> None:
    search = run_searcher(short=1.0)
    first = search.ask(4)
    assert len({run.row for run in first}) == 4
    search.tell(first[0], {1.0: 1e-3})
    assert {run.row for run in search.ask(4)}.isdisjoint(run.row for run in first)


def test_members_of_the_front_are_trained_with_other_seeds() -> None:
    search = run_searcher((5, 6, 7), short=1.0)
    runs = spend(search, 60, lambda gap, share: gap)
    assert {run.seed for run in runs[: 3 * PLACES]} == {5}
    others = [run for run in runs if run.seed != 5]
    assert len(others) > 10 and {run.seed for run in others} == {6, 7}
    assert len({(run.row, run.seed) for run in runs}) == 60
    assert {run.row for run in others} <= {run.row for run in runs if run.seed == 5}


def test_on_a_table_whose_short_runs_do_not_rank_little_is_lost() -> None:
    problem = problems(load("tanh-mlp"))[0]
    whole = counts(problem, "own", 0, 20)
    short = counts(problem, "own+short", 0, 20)
    assert whole[0] <= 20 and short[0] <= whole[0] + 1.0


def test_what_is_left_given_prices_is_the_partial_rank_correlation() -> None:
    """By the recursion over one price at a time."""
    rng = np.random.default_rng(4)
    costs = rng.uniform(size=(30, 2))
    first = costs @ [1.0, 0.3] + 0.3 * rng.uniform(size=30)
    second = first + 0.2 * rng.uniform(size=30)
    r = spearmanr(np.column_stack([first, second, costs])).statistic

    def given(a: int, b: int, *others: int) -> float:
        if not others:
            return float(r[a, b])
        *rest, last = others
        left, right = given(a, last, *rest), given(b, last, *rest)
        over = np.sqrt((1.0 - left**2) * (1.0 - right**2))
        return float((given(a, b, *rest) - left * right) / over)

    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    assert beyond_prices(pairs, costs) == pytest.approx(given(0, 1, 2, 3))
    assert np.isnan(beyond_prices(pairs[:6], costs[:6]))
    alone = [(time, gap) for time, (gap, _) in zip(costs[:, 0].tolist(), pairs, strict=True)]
    assert np.isnan(beyond_prices(alone, costs))
    assert ranks_alike(pairs, costs)


def test_looks_that_say_what_prices_say_anyway_do_not_carry() -> None:
    rng = np.random.default_rng(5)
    size = np.arange(20.0)
    early, late = size + rng.normal(0.0, 1.0, 20), size + rng.normal(0.0, 1.0, 20)
    pairs = list(zip(early.tolist(), late.tolist(), strict=True))
    assert rank_correlation(pairs) > LEAST_CORRELATION
    assert not ranks_alike(pairs, -np.column_stack([size, size**2]) + rng.normal(0.0, 0.1, (20, 2)))


def test_one_that_moves_three_places_speaks_against_looks_among_many_alone() -> None:
    """Of eight policies that leaves .86, which so few may show by chance; of forty .85 is low."""
    few, many = np.arange(8.0), np.arange(40.0)
    turned = np.concatenate([many[16::-1], many[17:]])
    for first, second, wanted in (
        (few, few[[3, 0, 1, 2, 4, 5, 6, 7]], True),
        (many, turned, False),
    ):
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        assert 0.84 < rank_correlation(pairs) < 0.86
        assert ranks_alike(pairs, np.random.default_rng(0).uniform(size=(len(pairs), 2))) is wanted


@pytest.mark.slow
def test_new_seeds_keep_the_front_true() -> None:
    """Without them, the longer one seed is searched the worse is its front on the mean of all."""
    shares = noisy_shares(load("tanh-mlp"), "own+seeds")
    assert shares[1] >= shares[0]
