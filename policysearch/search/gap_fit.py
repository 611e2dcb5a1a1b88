"""The model of loss gaps fitted to what was told: theta by damped Gauss-Newton steps.

Hyperparameters are fitted side by side, and those that explain what was told far worse than others
are given up on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from policysearch.search.gap_model import Gaps, Hyperparameters, Pairs, Rows, gaps_near
from policysearch.search.hypervolume import Array

REPEATS = 1e-3
"""Share of the noise that policies which cost the same decisions do not have in common."""

STEPS, LARGEST_STEP, SETTLED = 24, 1.0, 0.02

SURE, HOPELESS, RISING = 3, 200.0, 8.0
"""After so many steps, hyperparameters are given up whose evidence lies below the best by so many
nats, and by more than so many times what it rose with the last step."""


@dataclass(frozen=True)
class Told:
    """What a fit is fitted to: policies, their scaled gaps [n], and which of them are `alike`.

    The first is float32, which decides nothing: its gap is zero, untrained.
    """

    rows: Rows
    scaled: Array
    alike: Pairs


def told_of(rows: Rows, gaps: Array, smallest_gap: float) -> Told:
    """Return what was told: gaps [n] in nats of policies."""
    every = Rows(_after_zeros(rows.shares), _after_zeros(rows.changed))
    scaled = np.sign(gaps) * np.log1p(np.abs(gaps) / smallest_gap)
    return Told(every, np.concatenate([[0.0], scaled]), every.alike(every))


def _after_zeros(shares: Array) -> Array:
    return np.concatenate([np.zeros((1, shares.shape[1])), shares])


@dataclass(frozen=True)
class Fit:
    """The model linear in theta near one value of it, after what was told.

    `factor` is the Cholesky factor of the covariance of what was told, `weights` [n] its inverse
    times the residuals, `step` [decisions] how far off the best theta of the linear model is.
    `damping` of the step follows from those before. `evidence` is the logarithm of the likelihood
    of what was told, and `risen` by how much more that is than one step before.
    """

    by: Hyperparameters
    theta: Array
    told: Told
    gaps: Gaps
    factor: Array
    weights: Array
    step: Array
    damping: float
    evidence: float
    risen: float

    @property
    def size(self) -> float:
        """The largest change of theta that another step would make, in nats, were it whole."""
        return float(np.abs(self.step).max(initial=0.0))

    def stepped(self) -> Fit:
        """Return the fit one step on; itself where it has settled."""
        if self.size < SETTLED:
            return self
        theta = self.theta + self.step * self.damping * min(1.0, LARGEST_STEP / self.size)
        return fit_at(theta, self.by, self.told, self)

    def moving(self, modifier: float) -> Fit:
        """Return the fit where modifiers move gaps by so much, if none was told that would."""
        return replace(self, by=replace(self.by, modifier=modifier))

    def predict(self, rows: Rows, alike: Pairs) -> tuple[Array, Array]:
        """Return mean and standard deviation [n] of the scaled gap; `alike` to what was told."""
        there = gaps_near(self.theta, self.by, rows)
        known = there.covariance(self.gaps, alike)
        mean = there.expected + there.slopes @ (self.by.prior.mean - self.theta)
        explained = solve_triangular(self.factor, known.T, lower=True, check_finite=False)
        variance = there.variance - np.einsum("ij,ij->j", explained, explained)
        return mean + known @ self.weights, np.sqrt(np.maximum(variance, 1e-10))

    def covariances(self, some: Rows, rows: Rows) -> tuple[Array, Array]:
        """Return the covariance [m, m] of the scaled gaps of `some`, and with others [m, n]."""
        mine, theirs = (gaps_near(self.theta, self.by, each) for each in (some, rows))
        told = self.told.rows
        before, there = (
            solve_triangular(self.factor, self.gaps.covariance(gaps, told.alike(each)), lower=True)
            for gaps, each in ((mine, some), (theirs, rows))
        )
        among = mine.covariance(mine, some.alike(some)) + np.diag(REPEATS * mine.apart**2)
        across = mine.covariance(theirs, some.alike(rows))
        return among - before.T @ before, across - before.T @ there


def fit_at(theta: Array, by: Hyperparameters, told: Told, before: Fit | None = None) -> Fit:
    """Return the model near `theta`, reached by a step from the fit `before`."""
    prior, gaps = by.prior, gaps_near(theta, by, told.rows)
    covariance = gaps.covariance(gaps, told.alike)
    np.fill_diagonal(covariance, covariance.diagonal() + REPEATS * gaps.apart**2)
    # It is symmetric: transposed it is as LAPACK wants it, and need not be copied.
    factor, lower = cho_factor(covariance.T, lower=True, overwrite_a=True, check_finite=False)
    left = told.scaled - gaps.expected - gaps.slopes @ (prior.mean - theta)
    weights = cho_solve((factor, lower), left, check_finite=False)
    step = prior.mean + prior.spread((weights @ gaps.slopes)[None])[0] - theta
    evidence = -0.5 * float(left @ weights) - float(np.log(factor.diagonal()).sum())
    damping, risen = 1.0, 0.0
    if before is not None:
        # Whole steps would go to and fro: the sizes of the pair terms follow theta.
        damping = before.damping * (0.5 if step @ before.step < 0.0 else 1.0)
        risen = evidence - before.evidence
    return Fit(by, theta, told, gaps, factor, weights, step, damping, evidence, risen)


def fitted(fits: Sequence[Fit]) -> list[Fit]:
    """Return the fits once they have settled, without those that are hopeless beside others."""
    for count in range(STEPS):
        if count >= SURE:
            most = max(fit.evidence for fit in fits)
            fits = [f for f in fits if most - f.evidence <= max(HOPELESS, RISING * f.risen)]
        fits = [fit.stepped() for fit in fits]
    return list(fits)
