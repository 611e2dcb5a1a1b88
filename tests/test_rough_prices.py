"""Spaces too large to be priced one by one: rough prices beside exact ones, and what is drawn."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from policysearch.objective.objective import Objective
from policysearch.policy.parallel import Parallel
from policysearch.search.acquisition import Yardstick
from policysearch.search.candidates import MOST_SINGLE, SpacePool, SpacePrices
from policysearch.search.price_estimate import PriceEstimate
from policysearch.search.searcher import FINALISTS, Searcher
from policysearch.search.surrogate import KIND_SD, LEVEL_SD, OWN_SD, PLACE_SD, prior_of, with_hints
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.space.model_space import make_space
from policysearch.space.options import Decisions, Option
from policysearch.space.section import SpaceSection
from policysearch.train.tasks import Task

LAYERS = 18
TASK = Task(
    model="mlp",
    data="digits",
    widths=tuple(range(256, 256 + 32 * (LAYERS - 1), 32)),
    activation="tanh",
    batch_size=4096,
)
OBJECTIVE = Objective(TASK, "H100-SXM5", "torch.compile")
SECTION = SpaceSection(
    formats=("float32", "bfloat16", "float8_e4m3fn"),
    grad_formats=("same", "bfloat16"),
    output_formats=("same", "bfloat16"),
    param_formats=("same", "bfloat16"),
    master_weights=(True, False),
    ops=("tanh",),
    phase_points=(0.5,),
    phase_formats=("same", "bfloat16"),
    scalings=("current",),
)
GROUPS = tuple(f".fc{n}" for n in range(1, LAYERS + 1))
MEASURE = Yardstick(1.05, 1.15)


def exact(params: Params) -> tuple[float, float]:
    cost = OBJECTIVE.price(SPACE().policy(params))
    return 1.0 / cost.speedup, cost.memory_ratio


@cache
def SPACE() -> Any:
    return make_space(SECTION, OBJECTIVE.model, steps=TASK.steps)


@cache
def encoding() -> Encoding:
    return Encoding(SPACE())


@cache
def estimate() -> PriceEstimate:
    return PriceEstimate(OBJECTIVE, SPACE(), encoding(), 0)


def drawn(count: int, seed: int) -> list[Params]:
    rng = np.random.default_rng(seed)
    choices = SPACE().choices()
    return [{n: v[rng.integers(len(v))] for n, v in choices.items()} for _ in range(count)]


class Estimated(SpacePrices):
    """Estimates alone, made once."""

    def table(self) -> None:
        return None

    def estimate(self, encoding: Encoding) -> PriceEstimate:
        return estimate()


@pytest.fixture(scope="module")
def pool() -> SpacePool:
    assert len(SPACE().choices()) > MOST_SINGLE
    return SpacePool(SPACE(), encoding(), exact, 0, Estimated(OBJECTIVE, SPACE(), 0))


@pytest.mark.parametrize("devices", [1, 2])
def test_a_step_that_is_spread_is_not_estimated(devices: int) -> None:
    spread = Objective(TASK, "H100-SXM5", "torch.compile", parallel=Parallel(devices))
    found = SpacePrices(spread, SPACE(), 0).estimate(encoding())
    assert (found is None) == (devices > 1)


def test_rough_prices_order_policies_as_the_exact_ones_do() -> None:
    """Policies not fitted to: drawn freely, and with every group as the first."""
    every = drawn(12, 7)
    first = SPACE().groups[0].name
    for params in drawn(12, 8):
        heads = {n: n.replace(n.partition(".")[2], first) for n in params if n.endswith(GROUPS)}
        every.append(params | {n: params[like] for n, like in heads.items()})
    found = estimate().costs(np.array([encoding().row(params) for params in every]))
    true = np.array([exact(params) for params in every])
    for axis in (0, 1):
        assert spearmanr(found[:, axis], true[:, axis]).statistic > 0.85
    assert np.sqrt(((found / true - 1.0) ** 2).mean(axis=0)).max() < 0.2


def test_neighbours_of_a_priced_policy_differ_from_it_as_they_do(pool: SpacePool) -> None:
    member = pool.add(drawn(1, 3)[0])
    theta = np.full(len(encoding().decisions.counted()), -6.0)
    rows, costs = pool.propose([member], theta)
    grouped = np.array([name.endswith(GROUPS) for name in encoding().places])
    changed = rows != member
    near = np.flatnonzero((changed.sum(axis=1) == 1) & changed[:, grouped].any(axis=1)).tolist()
    assert len(near) > 30
    some = near[:: len(near) // 12]
    true = np.array([exact(pool.params_of(tuple(rows[i].tolist()))) for i in some])
    off, moved = costs[some] - true, true - exact(pool.params_of(member))
    assert np.sqrt((off**2).mean(axis=0)).max() < 0.02
    assert np.corrcoef((off + moved)[:, 0], moved[:, 0])[0, 1] > 0.9
    found = pool.exact(rows[some])
    assert found is not None
    np.testing.assert_array_equal(found, true)


def test_what_is_asked_for_has_its_exact_price(pool: SpacePool) -> None:
    searcher = Searcher(encoding().decisions, pool, MEASURE)
    (row, costs), (other, _) = searcher.ask(2)
    assert costs == exact(pool.params_of(row)) and other != row
    assert FINALISTS > 1


def test_a_sensitive_group_is_drawn_wide_and_the_others_are_not(pool: SpacePool) -> None:
    counted = encoding().decisions.counted()
    places = [encoding().places.index(f"format{name}") for name in GROUPS]
    shares = []
    for sensitive in (places[2], places[8]):
        theta = np.array([3.0 if at == sensitive else -9.0 for at, _ in counted])
        rows, _ = pool.propose([], theta)
        params = [pool.params_of(tuple(row)) for row in rows.tolist()]
        wide = [[p[f"format{name}"] == "float32" for name in GROUPS] for p in params]
        shares.append(np.mean(wide, axis=0))
    assert min(shares[0][2], shares[1][8]) > 0.95
    assert max(shares[0][8], shares[1][2]) < 0.9
    assert np.mean(shares) < 0.75


def test_a_prior_spreads_as_its_covariance_does() -> None:
    """Against the matrix made decision by decision, hints included."""
    options = (Option("float32"), Option("bfloat16", 2.0**-8), Option("e4m3", 2.0**-3))
    other = (Option("op=fp32"), Option("op=low", 2.0**-8))
    decisions = Decisions((options, other, options[:2]))
    counted = decisions.counted()
    hints = np.array([1.0, 2.0, np.nan, -1.0])[:, None]
    plain = prior_of(decisions, 1e-4, 1e-1)
    prior = with_hints(plain, decisions, hints)
    names = [decisions.places[place][index].name for place, index in counted]
    covariance = np.array(
        [
            [
                LEVEL_SD**2
                + KIND_SD**2 * (names[i] == names[j])
                + PLACE_SD**2 * (counted[i][0] == counted[j][0])
                + OWN_SD**2 * (i == j)
                for j in range(4)
            ]
            for i in range(4)
        ]
    )
    slopes = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_allclose(plain.spread(slopes), slopes @ covariance)
    moved = 0.3**2 * np.outer(given := np.array([1.0, 0.0, 0.0, -1.0]), given)
    np.testing.assert_allclose(prior.spread(slopes), slopes @ (covariance + moved))
