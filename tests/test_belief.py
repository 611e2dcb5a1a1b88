"""What the searcher believes, against the Gaussian written out policy by policy, pair by pair."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from policysearch.search import fit as surrogate_fit
from policysearch.search import surrogate
from policysearch.search.fit import Fit, fit_at, observations_of, settled
from policysearch.search.hypervolume import Array
from policysearch.search.posterior import Sensitivity
from policysearch.search.surrogate import Hyperparameters, prior_of, with_hints
from policysearch.space.options import Decisions, Option

NARROW = Option("bfloat16", 2.0**-7), Option("stored", 2.0**-7, 2.0**-7)
COARSE = Option("float8", 2.0**-3), Option("float6", 2.0**-5)
FLOAT32 = Option("float32")
DECISIONS = Decisions(
    ((FLOAT32, *NARROW, COARSE[0]), (*COARSE, FLOAT32), (NARROW[0], FLOAT32), (FLOAT32, *COARSE)),
    (3, 2),
)
COUNTED = [
    (place, option)
    for place, options in enumerate(DECISIONS.places)
    for option in options
    if option.name != "float32"
]
HINTS = np.array([0.15, -0.5, 1.0, 0.75, math.nan, 0.4, -0.2, math.nan])[:, None]
"""By decision: three of float8, two of bfloat16, one of `stored`; float6 has none."""
SMALLEST, LARGEST = 1e-4, 0.05
Row = tuple[int, ...]


def rows_of(count: int, seed: int) -> list[Row]:
    """Return policies in an order drawn; two that differ in modifiers alone are among the first."""
    ranges = [range(len(options)) for options in DECISIONS.places]
    ranges += [range(values) for values in DECISIONS.modifiers]
    every = [tuple(row) for row in itertools.product(*ranges)]
    drawn = np.random.default_rng(seed).permutation(len(every))[:count]
    rows = [every[place] for place in drawn]
    return [(3, 0, 0, 1, 1, 0), (3, 0, 0, 1, 2, 1), (3, 0, 1, 0, 1, 1), *rows]


def decided(row: Row) -> list[int]:
    """Return which of COUNTED a policy decides."""
    options = [DECISIONS.places[place][row[place]] for place in range(len(DECISIONS.places))]
    return [i for i, (place, option) in enumerate(COUNTED) if options[place] == option]


def hint_of(index: int) -> float:
    """Return by how much a hint is above the mean of its kind; 0 where there is none."""
    alike = [
        hint
        for (_, option), hint in zip(COUNTED, HINTS[:, 0], strict=True)
        if option == COUNTED[index][1] and not math.isnan(hint)
    ]
    hint = float(HINTS[index, 0])
    return 0.0 if math.isnan(hint) else hint - sum(alike) / len(alike)


def theta_mean(index: int, hints: bool) -> float:
    option = COUNTED[index][1]
    cost = (
        surrogate.OPERANDS * option.operand_epsilon**2 + surrogate.STORED * option.storage_epsilon
    )
    return math.log(LARGEST) + 1.0 + math.log(cost) + surrogate.HINT[0] * hints * hint_of(index)


def theta_covariance(one: int, other: int, hints: bool) -> float:
    (place, option), (there, beside) = COUNTED[one], COUNTED[other]
    found = surrogate.LEVEL_SD**2 + surrogate.KIND_SD**2 * (option == beside)
    found += surrogate.PLACE_SD**2 * (place == there) + surrogate.OWN_SD**2 * (one == other)
    return found + (surrogate.HINT[1] ** 2 * hint_of(one) * hint_of(other) if hints else 0.0)


def are_neighbours(one: int, other: int) -> bool:
    """Whether these are the same coarse decision in the next place that has it."""
    option = COUNTED[one][1]
    places = [place for place, each in COUNTED if each == option]
    coarse = option.operand_epsilon >= 2.0**-5
    next_place = places[places.index(COUNTED[one][0]) + 1 :][:1]
    return coarse and COUNTED[other][1] == option and [COUNTED[other][0]] == next_place


class Policy:
    """A policy at the theta of a fit, by itself."""

    def __init__(self, fit: Fit, row: Row) -> None:
        costs = {index: math.exp(fit.theta[index]) for index in decided(row)}
        self.gap = sum(costs.values())
        scale = self.gap + SMALLEST
        self.expected = math.log1p(self.gap / SMALLEST)
        self.slopes = {index: cost / scale for index, cost in costs.items()}
        self.modifiers = {(at, value) for at, value in enumerate(row[4:]) if value}
        self.share = self.gap / scale
        sizes = {
            index: cost / scale * (fit.by.pairs if _coarse(index) else min(0.2, fit.by.pairs))
            for index, cost in costs.items()
        }
        pairs = list(itertools.combinations(sizes, 2))
        self.singles = dict(sizes)
        self.pairs = {(a, b): math.sqrt(sizes[a] * sizes[b]) for a, b in pairs}
        self.near = sum(self.pairs[pair] for pair in pairs if are_neighbours(*pair))
        floor = (fit.by.prior.noise if costs else surrogate.KNOWN_NOISE) * SMALLEST
        noise = (surrogate.RELATIVE_NOISE * self.gap) ** 2 + floor**2
        self.unshared = surrogate.UNSHARED * self.pair_terms(self) + noise / scale**2

    def pair_terms(self, other: Policy) -> float:
        found = surrogate.COMMON**2 * self.near * other.near
        for index in self.singles.keys() & other.singles.keys():
            found += surrogate.SINGLE * self.singles[index] * other.singles[index]
        for pair in self.pairs.keys() & other.pairs.keys():
            variance = 1.0 if are_neighbours(*pair) else surrogate.FAR_PAIRS**2
            found += variance * self.pairs[pair] * other.pairs[pair]
        return found

    def covariance(self, other: Policy, fit: Fit) -> float:
        hints = fit.by.prior.hints is not None
        found = self.pair_terms(other)
        for (one, left), (two, right) in itertools.product(
            self.slopes.items(), other.slopes.items()
        ):
            found += left * right * theta_covariance(one, two, hints)
        if self.slopes.keys() == other.slopes.keys():
            found += math.sqrt(self.unshared * other.unshared)
        both = len(self.modifiers & other.modifiers)
        return found + fit.by.modifier**2 * both * self.share * other.share

    def mean(self, fit: Fit) -> float:
        hints = fit.by.prior.hints is not None
        return self.expected + sum(
            slope * (theta_mean(index, hints) - float(fit.theta[index]))
            for index, slope in self.slopes.items()
        )


def _coarse(index: int) -> bool:
    return COUNTED[index][1] in COARSE


def between(some: list[Policy], others: list[Policy], fit: Fit) -> Array:
    return np.array([[one.covariance(other, fit) for other in others] for one in some])


def gaps_of(rows: list[Row]) -> Array:
    """Return gaps that are nearly sums of what each decision costs; one is better than float32."""
    rng = np.random.default_rng(2)
    costs = np.exp([theta_mean(i, True) for i in range(len(COUNTED))] + rng.normal(0, 1, 8) - 2)
    gaps = [sum(costs[i] for i in decided(row)) * rng.normal(1.0, 0.1) for row in rows]
    return np.array([-2e-5, *gaps[1:]])


TOLD, ASKED = rows_of(12, 0), [*rows_of(10, 1), (0, 2, 1, 0, 0, 0), (0, 2, 1, 0, 2, 1)]
GAPS = gaps_of(TOLD)


@pytest.fixture(
    scope="module",
    params=[(0.4, 0.4, 0.02, False), (1.0, 0.03, 0.3, True), (0.1, 0.4, 0.3, True)],
    ids=str,
)
def fit(request: pytest.FixtureRequest) -> Fit:
    pairs, modifier, noise, hints = request.param
    prior = prior_of(DECISIONS, SMALLEST, LARGEST)
    prior = with_hints(prior, DECISIONS, HINTS) if hints else prior
    rows = read(TOLD)
    by = Hyperparameters(replace(prior, noise=noise), pairs, modifier)
    return settled([fit_at(prior.mean, by, observations_of(rows, GAPS, SMALLEST))])[0]


def read(rows: list[Row]) -> surrogate.Rows:
    empty = np.empty((0, 6), dtype=np.int64)
    return Sensitivity(DECISIONS, empty, np.empty(0), SMALLEST, LARGEST).rows(np.array(rows))


def predicted(fit: Fit) -> tuple[Array, Array]:
    rows = read(ASKED)
    return fit.predict(rows, rows.alike(fit.told.rows))


def posterior(fit: Fit, rows: list[Row]) -> tuple[Array, Array, Array, list[Policy]]:
    """Return what is told of the policies beside float32: gaps, means, covariance; and those."""
    known = [Policy(fit, row) for row in [(0, 2, 1, 0, 0, 0), *rows]]
    scaled = np.append(0.0, np.sign(GAPS) * np.log1p(np.abs(GAPS) / SMALLEST))
    own = np.diag([surrogate_fit.REPEATS * each.unshared for each in known])
    return scaled, np.array([p.mean(fit) for p in known]), between(known, known, fit) + own, known


def test_beliefs_are_the_gaussian_given_what_was_told(fit: Fit) -> None:
    scaled, means, covariance, known = posterior(fit, TOLD)
    asked = [Policy(fit, row) for row in ASKED]
    across = between(asked, known, fit)
    mean = [p.mean(fit) for p in asked] + across @ np.linalg.solve(covariance, scaled - means)
    left = between(asked, asked, fit) - across @ np.linalg.solve(covariance, across.T)
    found, sd = predicted(fit)
    np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(sd**2, np.maximum(np.diag(left), 1e-10), rtol=1e-5, atol=1e-9)
    assert np.ptp(found) > 1.0 and np.ptp(sd) > 0.1
    among, others = fit.covariances(read(ASKED[:4]), read(ASKED))
    own = np.diag([surrogate_fit.REPEATS * p.unshared for p in asked[:4]])
    np.testing.assert_allclose(among, left[:4, :4] + own, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(others, left[:4], rtol=1e-5, atol=1e-9)
    likely = multivariate_normal(means, covariance).logpdf(scaled)
    assert fit.evidence == pytest.approx(likely + len(scaled) / 2 * math.log(2 * math.pi))


def test_theta_is_the_one_that_what_was_told_makes_likely(fit: Fit) -> None:
    scaled, means, covariance, known = posterior(fit, TOLD)
    hints, many = fit.by.prior.hints is not None, range(len(COUNTED))
    spread = np.array([[theta_covariance(one, two, hints) for two in many] for one in many])
    slopes = np.array([[p.slopes.get(index, 0.0) for index in many] for p in known])
    prior = np.array([theta_mean(index, hints) for index in many])
    likely = prior + spread @ slopes.T @ np.linalg.solve(covariance, scaled - means)
    assert np.abs(likely - fit.theta).max() < 0.02 < np.abs(likely - prior).max()


def test_of_two_of_a_kind_that_with_the_larger_hint_is_believed_to_cost_more() -> None:
    plain = prior_of(DECISIONS, SMALLEST, LARGEST)
    more = with_hints(plain, DECISIONS, HINTS).mean - plain.mean
    assert more[2] > more[3] > 0.0 > more[6] and more[5] > 0.0 > more[0]
    assert more[1] == more[4] == more[7] == 0.0


def test_what_was_told_counts_by_its_evidence() -> None:
    belief = Sensitivity(DECISIONS, np.array(TOLD), GAPS, SMALLEST, LARGEST, HINTS)
    fits = belief._fits
    kinds = {(f.by.pairs, f.by.modifier, f.by.prior.noise, f.by.prior.hints is None) for f in fits}
    noises = surrogate.KNOWN_NOISE, 0.3, 5.0
    # Those that were hopeless beside others have been left out.
    assert kinds < set(itertools.product((0.4, 1.0), (0.0, 0.03, 0.4), noises, (True, False)))
    assert len(kinds) > 1
    # That modifiers do nothing is taken for ten times as likely as each other size.
    prior = [math.log(10.0) * (fit.by.modifier == 0.0) for fit in fits]
    evidence = np.array([fit.evidence for fit in fits]) + prior
    weights = np.exp(evidence - evidence.max()) / np.exp(evidence - evidence.max()).sum()
    np.testing.assert_allclose(belief.weights, weights, rtol=1e-9)
    mixed = sum(w * fit.theta for w, fit in zip(weights, fits, strict=True))
    np.testing.assert_allclose(belief.theta(), mixed)
    found = belief.predict(np.array(ASKED))
    kept = [(w, *predicted(fit)) for w, fit in zip(weights, fits, strict=True) if w > 0.01]
    assert 1 < len(found) == len(kept) < len(weights)
    for each, (weight, mean, sd) in zip(found, kept, strict=True):
        assert each.weight == pytest.approx(weight)
        np.testing.assert_allclose((each.mean, each.sd), (mean, sd))


@pytest.mark.parametrize(("scatter", "noises"), [(4.0, {5.0}), (0.1, {surrogate.KNOWN_NOISE, 0.3})])
def test_how_far_gaps_scatter_is_learned_from_what_was_told(
    scatter: float, noises: set[float]
) -> None:
    """And intervals for four in five hold as many; `scatter` is over the smallest gap."""
    decisions = Decisions(((FLOAT32, NARROW[0]),) * 6)
    rows = np.array(list(itertools.product((0, 1), repeat=6)))[1:]
    rng = np.random.default_rng(5)
    held, likeliest = [], set()
    for _ in range(12):
        order = rng.permutation(len(rows))
        told, others = order[:20], order[20:]
        gaps = SMALLEST * (2.0 * rows.sum(axis=1) + scatter * rng.standard_normal(len(rows)))
        belief = Sensitivity(decisions, rows[told], gaps[told], SMALLEST, LARGEST)
        likeliest.add(belief._fits[int(belief.weights.argmax())].by.prior.noise)
        found = belief.predict(rows[others])
        pairs, weights = [(e.mean, e.sd) for e in found], [e.weight for e in found]
        mean, sd = np.average(pairs, axis=0, weights=weights)
        scaled = np.sign(gaps[others]) * np.log1p(np.abs(gaps[others]) / SMALLEST)
        held.append(np.abs(scaled - mean) < 1.2816 * sd)
    assert likeliest <= noises and np.mean(held) >= 0.8
