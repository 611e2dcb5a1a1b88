"""What is believed of the loss gap of policies that were not trained, from those that were.

The gap of a policy is the sum of what each of its decisions costs by itself, one sensitivity
exp(theta) per decision, and of what pairs of decisions do together. To second order a decision
moves the trained parameters by some v, and the loss by g v + v H v / 2: alone that is a
sensitivity s, and two together add a term of either sign up to 2 sqrt(s s'). So pairs enter as a
Gaussian process whose covariance is the product of the sensitivities that two policies share. It is
large for coarse formats, whose v is chance; what storing parameters in bfloat16 does adds up.
Neighbours in the same coarse format round the tensors between them once for both: their terms are
larger, and partly the same for all neighbours of a net.

theta has a hierarchical Gaussian prior: one level for all, one per kind of decision, one per place,
and its own. It is fitted by Gauss-Newton steps, and near the fit all is Gaussian (Laplace's
approximation) on a logarithmic scale of the gap. Hyperparameters are averaged by their evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from policysearch.search.decisions import Decisions
from policysearch.search.hypervolume import Array
from policysearch.search.pair_terms import own, shared
from policysearch.search.priors import Prior, hinted, prior_of

COARSE_PAIRS = (0.4, 1.0)
"""Size of pair terms between coarse decisions, over the sensitivities; averaged over."""

FINE_PAIRS = 0.2
UNSHARED = 0.15
RELATIVE_NOISE = 0.03
"""Of the pair terms: for decisions that are not coarse, and the share that the neighbours of a
policy do not have in common with it. Noise over the gap."""

ABSOLUTE_NOISES = (0.02, 0.3)
"""Noise over the smallest gap; averaged over."""

REPEATS = 1e-3
"""Share of the noise that policies which cost the same decisions do not have in common."""

MODIFIERS = (0.03, 0.4)
"""By how much of a gap a modifier may change it; averaged over where there are modifiers."""

STEPS = 12
LARGEST_STEP = 1.0
SETTLED = 0.02


@dataclass(frozen=True)
class Rows:
    """Policies as numbers: `shares` [n, decisions] zeros and ones, `modifiers` [n, modifiers]."""

    shares: Array
    modifiers: NDArray[np.int64]


@dataclass(frozen=True)
class Belief:
    """A Gaussian of the scaled gap per policy, `mean` and `sd` [n], with its weight."""

    weight: float
    mean: Array
    sd: Array


@dataclass(frozen=True)
class Joint:
    """A Gaussian of the scaled gaps of m policies together, and of n others by themselves.

    `mean` [m], `covariance` [m, m]; `others` with the weight of both; `across` [m, n] is between.
    """

    mean: Array
    covariance: Array
    others: Belief
    across: Array


@dataclass(frozen=True)
class _Fit:
    """The model at its fit: for one prior, pair size and modifier size."""

    prior: Prior
    pairs: float
    modifier: float
    theta: Array
    told: Rows
    slopes: Array
    factor: Array
    weights: Array
    evidence: float


class Sensitivity:
    """The belief after training the policies `rows` [n, places + modifiers] with `gaps` [n].

    Gaps in nats, on the scale sign(gap) log(1 + |gap| / smallest_gap); `largest_gap` sets where
    the prior lies. `hints` has a number per decision of `Decisions.counted`, NaN where there is
    none: of two of a kind, that with the larger one may cost more. Whether it does is learned.
    Equal arguments give equal beliefs.
    """

    def __init__(
        self,
        decisions: Decisions,
        rows: NDArray[np.int64],
        gaps: Array,
        smallest_gap: float,
        largest_gap: float,
        hints: Array | None = None,
    ) -> None:
        self._decisions = decisions
        priors = [prior_of(decisions, smallest_gap, largest_gap)]
        if hints is not None and np.isfinite(hints).any():
            priors.append(hinted(priors[0], decisions, hints))
        scaled = np.sign(gaps) * np.log1p(np.abs(gaps) / smallest_gap)
        told = _with_float32(self.rows(rows))
        scaled = np.concatenate([[0.0], scaled])
        modifiers = MODIFIERS if decisions.modifiers else (0.0,)
        noisy = [replace(prior, noise=noise) for prior in priors for noise in ABSOLUTE_NOISES]
        sizes = product(noisy, COARSE_PAIRS, modifiers)
        self._fits = [_fit(prior, told, scaled, *size) for prior, *size in sizes]

    def rows(self, rows: NDArray[np.int64]) -> Rows:
        """Return policies as the model reads them."""
        counted = self._decisions.counted()
        shares = [rows[:, place] == index for place, index in counted]
        places = len(self._decisions.places)
        return Rows(
            np.array(shares, dtype=float).reshape(len(shares), len(rows)).T, rows[:, places:]
        )

    @property
    def weights(self) -> Array:
        """How much each set of hyperparameters counts: their evidence, sum 1."""
        evidence = np.array([fit.evidence for fit in self._fits])
        likely = np.exp(evidence - evidence.max())
        return np.asarray(likely / likely.sum())

    def predict(self, rows: NDArray[np.int64]) -> list[Belief]:
        """Return what is believed of the policies `rows` [n, places + modifiers]."""
        read = self.rows(rows)
        pairs = zip(self.weights, self._fits, strict=True)
        return [Belief(float(w), *_predict(fit.prior, fit, read)) for w, fit in pairs if w > 0.01]

    def joint(self, some: NDArray[np.int64], rows: NDArray[np.int64], least: float) -> list[Joint]:
        """Return beliefs of `some` together and `rows` singly, by what counts `least` or more."""
        pairs, read = zip(self.weights, self._fits, strict=True), (self.rows(some), self.rows(rows))
        return [_joint(fit, float(w), *read) for w, fit in pairs if w >= least]

    def theta(self) -> Array:
        """Return the fitted logarithms of the sensitivities in nats, as `Decisions.counted`."""
        fits = zip(self.weights, self._fits, strict=True)
        return np.asarray(sum(weight * fit.theta for weight, fit in fits))


def _with_float32(rows: Rows) -> Rows:
    """Return the policies after one that decides nothing: its gap is zero, untrained."""
    return Rows(
        np.concatenate([np.zeros((1, rows.shares.shape[1])), rows.shares]),
        np.concatenate([np.zeros((1, rows.modifiers.shape[1]), dtype=np.int64), rows.modifiers]),
    )


def _expected(prior: Prior, rows: Rows, theta: Array) -> tuple[Array, Array, Array]:
    """Return the expected gap [n], on its scale [n], and the slopes of that [n, decisions]."""
    parts = rows.shares * np.exp(theta)
    gap = parts.sum(axis=1)
    slopes = parts / (gap + prior.smallest_gap)[:, None]
    return gap, np.log1p(gap / prior.smallest_gap), slopes


def _sizes(prior: Prior, rows: Rows, theta: Array, pairs: float) -> Array:
    """Return what each decision of each policy brings into pairs, as a root: [n, decisions]."""
    parts = rows.shares * np.exp(theta)
    size = np.where(prior.coarse, pairs, min(FINE_PAIRS, pairs))
    return np.asarray(np.sqrt(parts * size / (parts.sum(axis=1) + prior.smallest_gap)[:, None]))


def _alike(left: Rows, right: Rows) -> Array:
    """Return which policies cost the same decisions, modifiers apart: [n, m], zeros and ones."""
    common = left.shares @ right.shares.T
    counts = left.shares.sum(axis=1)[:, None], right.shares.sum(axis=1)
    return np.asarray((common == counts[0]) & (common == counts[1]), dtype=float)


def _modified(left: Rows, right: Rows) -> Array:
    """Return how many unusual modifiers two policies have in common: [n, m]."""
    same = left.modifiers[:, None, :] == right.modifiers[None, :, :]
    return np.asarray((same & (left.modifiers[:, None, :] != 0)).sum(axis=2), dtype=float)


def _fit(prior: Prior, told: Rows, scaled: Array, pairs: float, modifier: float) -> _Fit:
    """Return the most likely theta and what prediction needs there."""
    theta, same = prior.mean, (modifier**2 * _modified(told, told), _alike(told, told))
    for _ in range(STEPS):
        factor, weights, slopes, _ = _linear(prior, told, scaled, theta, pairs, *same)
        step = prior.mean + prior.spread((weights @ slopes)[None])[0] - theta
        size = float(np.abs(step).max(initial=0.0))
        theta = theta + step * min(1.0, LARGEST_STEP / max(size, LARGEST_STEP))
        if size < SETTLED:
            break
    factor, weights, slopes, left = _linear(prior, told, scaled, theta, pairs, *same)
    likelihood = -0.5 * float(left @ weights) - float(np.log(np.diag(factor)).sum())
    return _Fit(prior, pairs, modifier, theta, told, slopes, factor, weights, likelihood)


def _linear(
    prior: Prior,
    told: Rows,
    scaled: Array,
    theta: Array,
    pairs: float,
    common: Array,
    alike: Array,
) -> tuple[Array, Array, Array, Array]:
    """Return the model linear in theta: Cholesky factor, weights, slopes, residuals of the told."""
    gap, expected, slopes = _expected(prior, told, theta)
    share = gap / (gap + prior.smallest_gap)
    sizes = _sizes(prior, told, theta, pairs)
    covariance = shared(sizes, sizes, prior.neighbours) + common * share[:, None] * share
    apart = np.sqrt(_unshared(prior, sizes, gap))
    covariance += alike * apart[:, None] * apart + prior.spread(slopes) @ slopes.T
    np.fill_diagonal(covariance, covariance.diagonal() + REPEATS * apart**2)
    factor, lower = cho_factor(covariance, lower=True)
    left = scaled - expected - slopes @ (prior.mean - theta)
    return np.asarray(factor), np.asarray(cho_solve((factor, lower), left)), slopes, left


def _noise(prior: Prior, gap: Array) -> Array:
    """Return the variance [n] that no model of the decisions explains, on the scale.

    float32, which decides nothing, has least.
    """
    absolute = np.where(gap > 0.0, prior.noise, ABSOLUTE_NOISES[0]) * prior.smallest_gap
    noise = (RELATIVE_NOISE * gap) ** 2 + absolute**2
    return np.asarray(noise / (gap + prior.smallest_gap) ** 2)


def _unshared(prior: Prior, sizes: Array, gap: Array) -> Array:
    """Return the variance [n] that policies share with those alike alone."""
    return np.asarray(UNSHARED * own(sizes, prior.neighbours) + _noise(prior, gap))


def _predict(prior: Prior, fit: _Fit, rows: Rows) -> tuple[Array, Array]:
    """Return mean and standard deviation [n] of the scaled gap."""
    gap, expected, slopes = _expected(prior, rows, fit.theta)
    told, _, _ = _expected(prior, fit.told, fit.theta)
    share, beside = (f / (f + prior.smallest_gap) for f in (gap, told))
    sizes, others = (_sizes(prior, r, fit.theta, fit.pairs) for r in (rows, fit.told))
    known = shared(sizes, others, prior.neighbours)
    apart = _unshared(prior, sizes, gap)
    if fit.modifier:
        there = np.sqrt(_unshared(prior, others, told))
        known += _alike(rows, fit.told) * np.sqrt(apart)[:, None] * there
        known += fit.modifier**2 * _modified(rows, fit.told) * share[:, None] * beside
    spread = prior.spread(slopes)
    known += spread @ fit.slopes.T
    mean = expected + slopes @ (prior.mean - fit.theta) + known @ fit.weights
    variance = (spread * slopes).sum(axis=1) + own(sizes, prior.neighbours) + apart
    variance += (fit.modifier * share) ** 2 * (rows.modifiers != 0).sum(axis=1)
    explained = solve_triangular(fit.factor, known.T, lower=True)
    variance -= (explained * explained).sum(axis=0)
    return mean, np.sqrt(np.maximum(variance, 1e-10))


def _joint(fit: _Fit, weight: float, some: Rows, rows: Rows) -> Joint:
    """Return what is believed after what was told, by one set of hyperparameters."""
    before, there = (
        solve_triangular(fit.factor, _covariance(fit, fit.told, each), lower=True)
        for each in (some, rows)
    )
    gap, _, _ = _expected(fit.prior, some, fit.theta)
    sizes = _sizes(fit.prior, some, fit.theta, fit.pairs)
    apart = np.sqrt(_unshared(fit.prior, sizes, gap))
    among = _covariance(fit, some, some) + np.diag(REPEATS * apart**2)
    among -= before.T @ before
    across = _covariance(fit, some, rows) - before.T @ there
    mean, _ = _predict(fit.prior, fit, some)
    return Joint(mean, among, Belief(weight, *_predict(fit.prior, fit, rows)), across)


def _covariance(fit: _Fit, left: Rows, right: Rows) -> Array:
    """Return the prior covariance [n, m] of scaled gaps, linear in theta at its fit."""
    both = left, right
    (gap, _, slopes), (other, _, beside) = (_expected(fit.prior, r, fit.theta) for r in both)
    share, there = (g / (g + fit.prior.smallest_gap) for g in (gap, other))
    sizes, others = (_sizes(fit.prior, r, fit.theta, fit.pairs) for r in both)
    found = shared(sizes, others, fit.prior.neighbours)
    mine, theirs = (
        np.sqrt(_unshared(fit.prior, *each)) for each in ((sizes, gap), (others, other))
    )
    found += _alike(*both) * mine[:, None] * theirs
    found += fit.modifier**2 * _modified(*both) * share[:, None] * there
    return np.asarray(found + fit.prior.spread(slopes) @ beside.T)
