"""The model of loss gaps against sums written out, and which of its fits are kept."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.search.tables import load, mean_problem
from policysearch.search import fit as surrogate_fit
from policysearch.search.fit import fit_at, observations_of, settled
from policysearch.search.hypervolume import Array
from policysearch.search.posterior import Sensitivity
from policysearch.search.searcher import WORST
from policysearch.search.surrogate import (
    COMMON,
    FAR_PAIRS,
    FINE_PAIRS,
    KIND_SD,
    KNOWN_NOISE,
    LEVEL_SD,
    OWN_SD,
    PLACE_SD,
    RELATIVE_NOISE,
    SINGLE,
    UNSHARED,
    Hyperparameters,
    Rows,
    gaps_near,
    prior_of,
    with_hints,
)
from policysearch.space.options import Decisions, Option

OPTIONS = (
    Option("float32"),
    Option("bfloat16", 2.0**-7),
    Option("float8", 2.0**-3),
    Option("float8.stored", 2.0**-3, 2.0**-7),
)
DECISIONS = Decisions((OPTIONS, OPTIONS[:3], OPTIONS), (3,))
SMALLEST = 1e-4
POLICIES = st.lists(
    st.tuples(*(st.integers(0, n - 1) for n in (4, 3, 4, 3))), min_size=1, max_size=6
)


def by_of(seed: int, modifier: float, hints: bool) -> tuple[Hyperparameters, Array]:
    """Return hyperparameters and a theta drawn around their prior."""
    prior = replace(prior_of(DECISIONS, SMALLEST, 0.05), noise=0.3)
    rng = np.random.default_rng(seed)
    if hints:
        prior = with_hints(prior, DECISIONS, rng.standard_normal((len(prior.mean), 2)))
    theta = prior.mean + rng.standard_normal(len(prior.mean))
    return Hyperparameters(prior, float(rng.choice([0.1, 0.4, 1.0])), modifier), theta


def rows_of(policies: list[tuple[int, ...]]) -> Rows:
    belief = Sensitivity(DECISIONS, np.empty((0, 4), np.int64), np.empty(0), SMALLEST, 0.05)
    return belief.rows(np.array(policies, dtype=np.int64))


class Plain:
    """One policy, by the formulas of the model."""

    def __init__(self, by: Hyperparameters, theta: Array, policy: tuple[int, ...]) -> None:
        counted = DECISIONS.counted()
        self.costs = {
            k: math.exp(theta[k])
            for k, (place, option) in enumerate(counted)
            if policy[place] == option
        }
        self.gap = sum(self.costs.values())
        self.slopes = {k: cost / (self.gap + SMALLEST) for k, cost in self.costs.items()}
        coarse, fine = by.pairs, min(by.pairs, FINE_PAIRS)
        self.sizes = {
            k: s * (coarse if by.prior.coarse[k] else fine) for k, s in self.slopes.items()
        }
        self.modifier, self.by, self.counted = policy[-1], by, counted

    def prior(self, other: Plain) -> float:
        """The covariance that theta brings in: the slopes times the sum of its levels."""
        found, hints = 0.0, self.by.prior.hints
        for (k, mine), (m, theirs) in itertools.product(self.slopes.items(), other.slopes.items()):
            (place, option), (there, another) = self.counted[k], self.counted[m]
            names = DECISIONS.places[place][option].name, DECISIONS.places[there][another].name
            between = LEVEL_SD**2 + KIND_SD**2 * (names[0] == names[1])
            between += PLACE_SD**2 * (place == there) + OWN_SD**2 * (k == m)
            between += 0.0 if hints is None else float(hints[k] @ hints[m])
            found += mine * between * theirs
        return found

    def pairs(self, other: Plain) -> float:
        """Each pair in both has a term, and each decision, and what neighbours have in common."""
        both = sorted(self.sizes.keys() & other.sizes.keys())
        near = [tuple(pair) for pair in self.by.prior.neighbours.tolist()]
        product = {k: math.sqrt(self.sizes[k] * other.sizes[k]) for k in both}
        found = SINGLE * sum(value**2 for value in product.values())
        for pair in itertools.combinations(both, 2):
            size = 1.0 if pair in near else FAR_PAIRS**2
            found += size * product[pair[0]] * product[pair[1]]
        return found + COMMON**2 * self.together() * other.together()

    def together(self) -> float:
        near = self.by.prior.neighbours.tolist()
        roots = {k: math.sqrt(size) for k, size in self.sizes.items()}
        return sum(roots[a] * roots[b] for a, b in near if a in roots and b in roots)

    @property
    def apart(self) -> float:
        """The variance shared with those alike alone."""
        absolute = (self.by.prior.noise if self.gap else KNOWN_NOISE) * SMALLEST
        noise = ((RELATIVE_NOISE * self.gap) ** 2 + absolute**2) / (self.gap + SMALLEST) ** 2
        return UNSHARED * self.pairs(self) + noise

    def covariance(self, other: Plain) -> float:
        found = self.prior(other) + self.pairs(other)
        found += math.sqrt(self.apart * other.apart) * (self.costs.keys() == other.costs.keys())
        both = self.modifier == other.modifier != 0
        shares = [each.gap / (each.gap + SMALLEST) for each in (self, other)]
        return found + self.by.modifier**2 * both * shares[0] * shares[1]


@settings(max_examples=60, deadline=None)
@given(POLICIES, POLICIES, st.integers(0, 99), st.sampled_from([0.0, 0.4]), st.booleans())
def test_covariances_are_the_sums_they_stand_for(
    left: list[tuple[int, ...]],
    right: list[tuple[int, ...]],
    seed: int,
    modifier: float,
    hints: bool,
) -> None:
    by, theta = by_of(seed, modifier, hints)
    mine, theirs = rows_of(left), rows_of(right)
    plain, others = ([Plain(by, theta, p) for p in each] for each in (left, right))
    here, there = (gaps_near(theta, by, rows) for rows in (mine, theirs))
    expected = [[a.covariance(b) for b in others] for a in plain]
    moved, others_moved = (
        gaps.moving[:, None] * rows.changed for gaps, rows in ((here, mine), (there, theirs))
    )
    found = here.between(there, mine.alike(theirs)) + moved @ others_moved.T
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    variance = here.variance + (moved**2).sum(axis=1)
    np.testing.assert_allclose(variance, [p.covariance(p) for p in plain], rtol=1e-10)
    gaps = [math.log1p(p.gap / SMALLEST) for p in plain]
    np.testing.assert_allclose(here.expected, gaps, rtol=1e-10)


def test_modifiers_fit_alike_until_an_unusual_one_was_told() -> None:
    usual = [(1, 0, 2, 0), (2, 2, 0, 0), (3, 1, 1, 0), (2, 2, 2, 0)]
    rows, gaps = np.array(usual), np.array([1e-4, 3e-3, 4e-3, 1e-2])
    belief = Sensitivity(DECISIONS, rows, gaps, SMALLEST, 0.05)
    told = observations_of(belief.rows(rows), gaps, SMALLEST)
    each = [fit.by for fit in belief._fits]
    apart = settled([fit_at(by.prior.mean, by, told) for by in each])
    assert len({by.modifier for by in each}) == 3 and len(apart) == len(each) == 18
    assert [fit.evidence for fit in apart] == [fit.evidence for fit in belief._fits]
    others = belief.rows(np.array([(2, 1, 2, 1), (2, 2, 2, 2)]))
    alike = others.alike(told.rows)
    for mine, theirs in zip(belief._fits, apart, strict=True):
        for one, other in zip(
            mine.predict(others, alike), theirs.predict(others, alike), strict=True
        ):
            assert one.tolist() == other.tolist()
    more = Sensitivity(
        DECISIONS, np.array([*usual, (2, 2, 2, 1)]), np.append(gaps, 2e-2), 1e-4, 0.05
    )
    assert len({fit.evidence for fit in more._fits}) == len(more._fits)


@pytest.mark.parametrize("name", ["mlp-digits-0.1.0", "tanh-mlp-scales"])
def test_what_is_given_up_on_the_way_would_not_have_counted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = load(name)
    places: NDArray[np.int64] = np.random.default_rng(0).permutation(len(table.rows))[:40]
    gaps = np.minimum(mean_problem(table).told[places], WORST * table.measure.largest_gap)
    scale = table.measure.smallest_gap, table.measure.largest_gap

    def believed() -> Sensitivity:
        return Sensitivity(table.decisions, table.rows[places], gaps, *scale)

    fewer = believed()
    monkeypatch.setattr(surrogate_fit, "HOPELESS", np.inf)
    every = believed()
    assert len(fewer.weights) < len(every.weights) == 18
    np.testing.assert_allclose(fewer.theta(), every.theta(), rtol=1e-9)
    for one, other in zip(fewer.predict(table.rows), every.predict(table.rows), strict=True):
        assert one.weight == pytest.approx(other.weight, rel=1e-9)
        np.testing.assert_array_equal(one.mean, other.mean)
