"""The loss gap as a function of a policy's decisions, fitted for one set of hyperparameters.

The model is that of `sensitivity.py`: theta by damped Gauss-Newton steps, and near the fit all is
Gaussian, on the scale sign(gap) log(1 + |gap| / smallest_gap).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from policysearch.search.hypervolume import Array
from policysearch.search.pair_terms import own, shared
from policysearch.search.priors import Prior

FINE_PAIRS = 0.2
UNSHARED = 0.15
RELATIVE_NOISE = 0.03
"""Of the pair terms: for decisions that are not coarse, and the share that the neighbours of a
policy do not have in common with it. Noise over the gap."""

KNOWN_NOISE = 0.02
"""Noise of float32, which decides nothing, over the smallest gap."""

REPEATS = 1e-3
"""Share of the noise that policies which cost the same decisions do not have in common."""

STEPS, LARGEST_STEP, SETTLED = 24, 1.0, 0.02


@dataclass(frozen=True)
class Rows:
    """Policies as numbers: `shares` [n, decisions] zeros and ones, `modifiers` [n, modifiers]."""

    shares: Array
    modifiers: NDArray[np.int64]


@dataclass(frozen=True)
class Fit:
    """The model at its fit: for one prior, size of pair terms and size of modifiers.

    `evidence` is the logarithm of the likelihood of what was told.
    """

    prior: Prior
    pairs: float
    modifier: float
    theta: Array
    told: Rows
    slopes: Array
    factor: Array
    weights: Array
    evidence: float

    def predict(self, rows: Rows) -> tuple[Array, Array]:
        """Return mean and standard deviation [n] of the scaled gap."""
        prior = self.prior
        gap, expected, slopes = _expected(prior, rows, self.theta)
        sizes, share = _sizes(prior, rows, self.theta, self.pairs), gap / (gap + prior.smallest_gap)
        known = self._covariance(rows, self.told)
        mean = expected + slopes @ (prior.mean - self.theta) + known @ self.weights
        variance = (prior.spread(slopes) * slopes).sum(axis=1) + own(sizes, prior.neighbours)
        variance += _unshared(prior, sizes, gap)
        variance += (self.modifier * share) ** 2 * (rows.modifiers != 0).sum(axis=1)
        explained = solve_triangular(self.factor, known.T, lower=True)
        variance -= (explained * explained).sum(axis=0)
        return mean, np.sqrt(np.maximum(variance, 1e-10))

    def covariances(self, some: Rows, rows: Rows) -> tuple[Array, Array]:
        """Return the covariance [m, m] of the scaled gaps of `some`, and with others [m, n]."""
        before, there = (
            solve_triangular(self.factor, self._covariance(self.told, each), lower=True)
            for each in (some, rows)
        )
        gap, _, _ = _expected(self.prior, some, self.theta)
        sizes = _sizes(self.prior, some, self.theta, self.pairs)
        apart = np.sqrt(_unshared(self.prior, sizes, gap))
        among = self._covariance(some, some) + np.diag(REPEATS * apart**2)
        return among - before.T @ before, self._covariance(some, rows) - before.T @ there

    def _covariance(self, left: Rows, right: Rows) -> Array:
        """Return the prior covariance [n, m] of scaled gaps, linear in theta at its fit."""
        prior, both = self.prior, (left, right)
        (gap, _, slopes), (other, _, beside) = (_expected(prior, r, self.theta) for r in both)
        share, there = (g / (g + prior.smallest_gap) for g in (gap, other))
        sizes, others = (_sizes(prior, r, self.theta, self.pairs) for r in both)
        found = shared(sizes, others, prior.neighbours)
        mine, theirs = (np.sqrt(_unshared(prior, *e)) for e in ((sizes, gap), (others, other)))
        found += _alike(*both) * mine[:, None] * theirs
        found += self.modifier**2 * _modified(*both) * share[:, None] * there
        return np.asarray(found + prior.spread(slopes) @ beside.T)


def fitted(
    prior: Prior,
    told: Rows,
    gaps: Array,
    pairs: float,
    modifier: float,
    start: Array | None = None,
) -> Fit:
    """Return the model fitted to `gaps` [n] in nats of the policies `told`, from theta `start` on.

    Left out, it starts from the mean of the prior.
    """
    told, theta = _with_float32(told), prior.mean if start is None else start
    scaled = np.sign(gaps) * np.log1p(np.abs(gaps) / prior.smallest_gap)
    scaled = np.concatenate([[0.0], scaled])
    same = modifier**2 * _modified(told, told), _alike(told, told)
    damping, before = 1.0, np.zeros_like(theta)
    for left in range(STEPS, -1, -1):
        factor, weights, slopes, apart = _linear(prior, told, scaled, theta, pairs, *same)
        step = prior.mean + prior.spread((weights @ slopes)[None])[0] - theta
        size = float(np.abs(step).max(initial=0.0))
        if size < SETTLED or not left:
            break
        # Whole steps would go to and fro: the sizes of the pair terms follow theta.
        damping *= 0.5 if step @ before < 0.0 else 1.0
        theta, before = theta + step * damping * min(1.0, LARGEST_STEP / size), step
    likelihood = -0.5 * float(apart @ weights) - float(np.log(np.diag(factor)).sum())
    return Fit(prior, pairs, modifier, theta, told, slopes, factor, weights, likelihood)


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
    absolute = np.where(gap > 0.0, prior.noise, KNOWN_NOISE) * prior.smallest_gap
    noise = (RELATIVE_NOISE * gap) ** 2 + absolute**2
    return np.asarray(noise / (gap + prior.smallest_gap) ** 2)


def _unshared(prior: Prior, sizes: Array, gap: Array) -> Array:
    """Return the variance [n] that policies share with those alike alone."""
    return np.asarray(UNSHARED * own(sizes, prior.neighbours) + _noise(prior, gap))
