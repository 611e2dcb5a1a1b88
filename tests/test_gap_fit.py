"""The fit behind the searcher's belief: it settles, and goes on from an earlier one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.search.tables import Table, load, mean_problem
from policysearch.search import fit as surrogate_fit
from policysearch.search.hypervolume import Array
from policysearch.search.posterior import MODIFIERS, Sensitivity
from policysearch.search.searcher import WORST
from policysearch.search.surrogate import prior_of
from policysearch.space.options import Decisions, Option


def told_of(name: str, count: int) -> tuple[Table, NDArray[np.int64], Array]:
    """Return a table with `count` of its policies drawn at random, and their gaps as learned."""
    table = load(name)
    places = np.random.default_rng(0).permutation(len(table.rows))[:count]
    gaps = mean_problem(table).told[places]
    return table, table.rows[places], np.minimum(gaps, WORST * table.measure.largest_gap)


def believed(table: Table, rows: NDArray[np.int64], gaps: Array) -> Sensitivity:
    scale = table.measure.smallest_gap, table.measure.largest_gap
    return Sensitivity(table.decisions, rows, gaps, *scale)


@pytest.mark.parametrize("name", ["tanh-mlp-masters", "gpt-sums-groups", "transformer-ops"])
def test_one_more_step_of_the_fit_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole Gauss-Newton steps went to and fro by a factor of e on all three."""
    told = told_of(name, 20)
    fitted = believed(*told).theta()
    monkeypatch.setattr(surrogate_fit, "STEPS", surrogate_fit.STEPS + 1)
    assert np.abs(believed(*told).theta() - fitted).max() < 0.05
    assert np.ptp(fitted) > 1.0


def test_a_belief_with_more_told_is_that_of_all_told() -> None:
    table, rows, gaps = told_of("tanh-mlp-masters", 20)
    before, whole = believed(table, rows[:17], gaps[:17]), believed(table, rows, gaps)
    after = before.with_more(rows, gaps)
    assert np.abs(after.theta() - whole.theta()).max() < 0.05
    assert np.abs(before.theta() - whole.theta()).max() > 0.1
    assert len(after.weights) < len(before.weights)


def test_each_size_of_modifiers_settles_where_it_does_from_the_prior_on() -> None:
    table, rows, gaps = told_of("mlp-digits-0.1.0", 30)
    belief, scale = believed(table, rows, gaps), table.measure.smallest_gap
    told = surrogate_fit.observations_of(belief.rows(rows), gaps, scale)
    assert len(told.seen) > 0 and {fit.by.modifier for fit in belief._fits} == set(MODIFIERS)
    for fit in belief._fits:
        (alone,) = surrogate_fit.settled([surrogate_fit.fit_at(fit.by.prior.mean, fit.by, told)])
        assert np.abs(fit.theta - alone.theta).max() < 0.1
        assert fit.evidence == pytest.approx(alone.evidence, abs=0.3)
    assert np.ptp([fit.evidence for fit in belief._fits]) > 3.0


def test_rounded_operands_cost_by_the_square_of_epsilon_and_stored_parameters_by_itself() -> None:
    """Before any training; errors of operands are chance, and lost updates add up."""
    options = (Option("a", 2.0**-4), Option("b", 2.0**-7), Option("c", 0.0, 2.0**-8))
    finer = Option("d", 0.0, 2.0**-11)
    mean = prior_of(Decisions(((Option("float32"), *options, finer),)), 1e-4, 0.05).mean
    np.testing.assert_allclose([mean[0] - mean[1], mean[2] - mean[3]], np.log([64.0, 8.0]))
