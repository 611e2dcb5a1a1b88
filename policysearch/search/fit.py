"""The model of loss gaps fitted to what was told: theta by damped Gauss-Newton steps.

Hyperparameters are fitted side by side, and those that explain what was told far worse than others
are given up on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from policysearch.search.hypervolume import Array
from policysearch.search.surrogate import Gaps, Hyperparameters, Pairs, Rows, gaps_near

REPEATS = 1e-3
"""Share of the noise that policies which cost the same decisions do not have in common."""

STEPS, LARGEST_STEP, SETTLED = 24, 1.0, 0.02

SURE, HOPELESS, RISING = 3, 30.0, 8.0
"""After so many steps, hyperparameters are given up whose evidence lies below the best by so many
nats, and by more than so many times what it rose with the last step."""


@dataclass(frozen=True)
class Observations:
    """What a fit is fitted to: `rows` that differ in their decisions, and their mean `scaled` gaps.

    Of the policies that are one row but for their modifiers there are `counts` [rows]. Where these
    are more than one, `rest` [m] is what is left of each gap, `rest_changed` [m, seen] of what it
    has of the `seen` unusual values, and `row` [m] where it belongs. The first row is float32,
    which decides nothing: its gap is zero, untrained.
    """

    rows: Rows
    scaled: Array
    counts: Array
    seen: NDArray[np.int64]
    rest: Array
    rest_changed: Array
    row: NDArray[np.int64]


def observations_of(rows: Rows, gaps: Array, smallest_gap: float) -> Observations:
    """Return what was told: gaps [n] in nats of policies."""
    every = Rows(_after_zeros(rows.shares), _after_zeros(rows.changed))
    scaled = np.concatenate([[0.0], np.sign(gaps) * np.log1p(np.abs(gaps) / smallest_gap)])
    groups, seen = every.groups(), np.flatnonzero(every.changed.any(axis=0))
    counts, changed = np.bincount(groups).astype(float), every.changed[:, seen]
    first = np.unique(groups, return_index=True)[1]
    means = np.zeros((len(counts), 1 + len(seen)))
    np.add.at(means, groups, np.column_stack([scaled, changed]))
    means /= counts[:, None]
    more = np.flatnonzero(counts[groups] > 1.0)
    return Observations(
        Rows(every.shares[first], means[:, 1:]),
        means[:, 0],
        counts,
        seen,
        scaled[more] - means[groups[more], 0],
        changed[more] - means[groups[more], 1:],
        groups[more],
    )


def _after_zeros(shares: Array) -> Array:
    return np.concatenate([np.zeros((1, shares.shape[1])), shares])


@dataclass(frozen=True)
class Moves:
    """What is believed of what unusual values of modifiers do, after what was told.

    A Gaussian: its `mean` [seen] and `precision` [seen, seen]. `solved` [rows, seen] is what rows
    have of them, times the inverse of their covariance.
    """

    mean: Array
    precision: Array
    solved: Array

    def left(self, moving: Array, changed: Array, known: Array) -> Array:
        """Return what others [n] still have of them, beside what is `known` of rows: [n, seen]."""
        return np.asarray(moving[:, None] * changed - known @ self.solved)


@dataclass(frozen=True)
class Fit:
    """The model linear in theta near one value of it, after what was told.

    `factor` is the Cholesky factor of the covariance of the rows told, modifiers apart, `weights`
    [rows] what the mean of others has of their covariance, `step` [decisions] how far off the best
    theta of the linear model is. `damping` of the step follows from those before. `evidence` is the
    logarithm of the likelihood of what was told, and `risen` by how much more that is than one step
    before.
    """

    by: Hyperparameters
    theta: Array
    told: Observations
    gaps: Gaps
    factor: Array
    weights: Array
    moves: Moves
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

    def predict(self, rows: Rows, alike: Pairs) -> tuple[Array, Array]:
        """Return mean and standard deviation [n] of the scaled gap; `alike` to the rows observed.

        Rasmussen and Williams, eq. 2.25 and 2.26: with k what a policy has in common with those
        observed, its mean rises by k K^-1 residual and its variance falls by k K^-1 k.
        """
        there = gaps_near(self.theta, self.by, rows)
        known = there.between(self.gaps, alike)
        mean = there.expected + there.slopes @ (self.by.prior.mean - self.theta)
        mean += known @ self.weights
        explained = solve_triangular(self.factor, known.T, lower=True, check_finite=False)
        variance = there.variance - np.einsum("ij,ij->j", explained, explained)
        seen, new = rows.changed[:, self.told.seen], np.delete(rows.changed, self.told.seen, axis=1)
        mean += (there.moving[:, None] * seen) @ self.moves.mean
        # Of modifiers: what is still unsure of the values observed, and all of those never
        # observed.
        left = self.moves.left(there.moving, seen, known)
        variance += (left * np.linalg.solve(self.moves.precision, left.T).T).sum(axis=1)
        variance += there.moving**2 * new.sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, 1e-10))

    def covariances(self, some: Rows, rows: Rows) -> tuple[Array, Array]:
        """Return the covariance [m, m] of the scaled gaps of `some`, and with others [m, n]."""
        mine = gaps_near(self.theta, self.by, some)
        repeats = np.diag(REPEATS * mine.apart**2)
        return self._covariance(some, some) + repeats, self._covariance(some, rows)

    def _covariance(self, some: Rows, rows: Rows) -> Array:
        """Return the covariance [m, n] of the scaled gaps of policies after what was told."""
        pair = some, rows
        mine, theirs = (gaps_near(self.theta, self.by, each) for each in pair)
        known, there = (
            gaps.between(self.gaps, each.alike(self.told.rows))
            for gaps, each in ((mine, some), (theirs, rows))
        )
        before, after = (
            solve_triangular(self.factor, each.T, lower=True) for each in (known, there)
        )
        seen, new = (
            [each.changed[:, self.told.seen] for each in pair],
            [np.delete(each.changed, self.told.seen, axis=1) for each in pair],
        )
        left = self.moves.left(mine.moving, seen[0], known)
        right = self.moves.left(theirs.moving, seen[1], there)
        # Prior covariance less what the observed explain of both; then modifiers, as in `predict`.
        covariance = mine.between(theirs, some.alike(rows)) - before.T @ after
        covariance += mine.moving[:, None] * (new[0] @ new[1].T) * theirs.moving
        return np.asarray(covariance + left @ np.linalg.solve(self.moves.precision, right.T))


# Gauss-Newton for the mode of theta, one step (the iterated Kalman update of Bell and Cathey, IEEE
# Trans. Autom. Control 38(2), 1993). Linear in theta, what is observed is Gaussian: y = expected +
# slopes (theta - here) + pairs + noise, of covariance K with the prior of theta in it. So with
# weights = K^-1 (y - its mean) the best theta is mean + S slopes^T weights, S its prior covariance,
# and the logarithm of the likelihood is -(r K^-1 r + log det K) / 2, the same constant for all left
# out (Rasmussen and Williams, eq. 2.30). At the mode that is Laplace's approximation.
#
# Policies that differ in modifiers alone would be nearly equal rows of K. They are one row, their
# mean, and what each lies off it, which has the variance `repeats` alone: mean and rest are
# independent. What modifiers do is linear with unit variance; it is taken out by Woodbury's formula
# and the determinant lemma, whose small matrix is `precision`.
def fit_at(theta: Array, by: Hyperparameters, data: Observations, before: Fit | None = None) -> Fit:
    """Return the model near `theta`, reached by a step from the fit `before`."""
    prior, gaps = by.prior, gaps_near(theta, by, data.rows)
    covariance, own = gaps.covariance(gaps), gaps.apart**2
    repeats = REPEATS * own
    np.fill_diagonal(covariance, covariance.diagonal() + own + repeats / data.counts)
    # It is symmetric: transposed it is as LAPACK wants it, and need not be copied.
    factor, lower = cho_factor(covariance.T, lower=True, overwrite_a=True, check_finite=False)
    left = data.scaled - gaps.expected - gaps.slopes @ (prior.mean - theta)
    moved = gaps.moving[:, None] * data.rows.changed
    solved = cho_solve((factor, lower), np.column_stack([left, moved]), check_finite=False)
    # What repeats of a row say beyond their mean: of modifiers, and of the noise between them.
    apart = gaps.moving[data.row, None] * data.rest_changed
    sure = apart.T / repeats[data.row]
    precision = np.eye(len(data.seen)) + moved.T @ solved[:, 1:] + sure @ apart
    pull = moved.T @ solved[:, 0] + sure @ data.rest
    moves = Moves(np.linalg.solve(precision, pull), precision, solved[:, 1:])
    weights = solved[:, 0] - moves.solved @ moves.mean
    fitting = left @ solved[:, 0] + data.rest**2 @ (1.0 / repeats[data.row]) - pull @ moves.mean
    spread = 2.0 * np.log(factor.diagonal()).sum() + (data.counts - 1.0) @ np.log(repeats)
    spread += np.log(data.counts).sum() + np.linalg.slogdet(precision)[1]
    evidence = -0.5 * float(fitting + spread)
    step = prior.mean + prior.spread((weights @ gaps.slopes)[None])[0] - theta
    damping, risen = 1.0, 0.0
    if before is not None:
        # Whole steps would go to and fro: the sizes of the pair terms follow theta.
        # A step against the one before halves all that follow, which ends the oscillation.
        damping = before.damping * (0.5 if step @ before.step < 0.0 else 1.0)
        risen = evidence - before.evidence
    return Fit(by, theta, data, gaps, factor, weights, moves, step, damping, evidence, risen)


def settled(fits: Sequence[Fit]) -> list[Fit]:
    """Return the fits once they have settled, without those that are hopeless beside others."""
    for count in range(STEPS):
        if count >= SURE:
            most = max(fit.evidence for fit in fits)
            fits = [f for f in fits if most - f.evidence <= max(HOPELESS, RISING * f.risen)]
        fits = [fit.stepped() for fit in fits]
    return list(fits)
