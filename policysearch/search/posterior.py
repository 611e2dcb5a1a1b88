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
and its own. It is fitted by damped Gauss-Newton steps, and near the fit all is Gaussian (Laplace's
approximation) on a logarithmic scale of the gap. Hyperparameters are averaged by their evidence.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from policysearch.search.fit import Fit, fit_at, observations_of, settled
from policysearch.search.hypervolume import Array
from policysearch.search.surrogate import (
    KNOWN_NOISE,
    OWN_SD,
    Hyperparameters,
    Rows,
    prior_of,
    with_hints,
)
from policysearch.space.options import Decisions

COARSE_PAIRS = (0.4, 1.0)
"""Size of pair terms between coarse decisions, over the sensitivities; averaged over."""

ABSOLUTE_NOISES = (KNOWN_NOISE, 0.3, 5.0)
"""Noise over the smallest gap; averaged over. Some nets tell the same gap to a few hundredths of
it, others not even to a few times it."""

MODIFIERS = (0.0, 0.03, 0.4)
"""By how much of a gap a modifier may change it, not at all among them; averaged over where there
are modifiers."""

NOTHING = 10.0
"""So many times as likely as another size is it, before any training, that modifiers do nothing."""

LEAST_WEIGHT = 0.01
"""Of hyperparameters, for their beliefs to be averaged."""


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


class Sensitivity:
    """The belief after training the policies `rows` [n, places + modifiers] with `gaps` [n].

    Gaps in nats, on the scale sign(gap) log(1 + |gap| / smallest_gap); `largest_gap` sets where
    the prior lies. `hints` [decisions, any] has numbers for each of `Decisions.counted`, NaN where
    there is none: of two of a kind, that with the larger one may cost more. Whether it does is
    learned. Equal arguments give equal beliefs.
    """

    def __init__(
        self,
        decisions: Decisions,
        rows: NDArray[np.int64],
        gaps: Array,
        smallest_gap: float,
        largest_gap: float,
        hints: Array | None = None,
        own_sds: Sequence[float] = (OWN_SD,),
    ) -> None:
        self._decisions = decisions
        prior = prior_of(decisions, smallest_gap, largest_gap)
        priors = [replace(prior, own_sd=own_sd) for own_sd in own_sds]
        if hints is not None and np.isfinite(hints).any():
            priors += [with_hints(each, decisions, hints) for each in priors]
        data = observations_of(self.rows(rows), gaps, smallest_gap)
        # A grid of hyperparameters, averaged by evidence: with a dozen observations one best set
        # would be far too sure (MacKay, Neural Computation 4(3), 1992, on evidence as a weight).
        noisy = [replace(prior, noise=noise) for prior in priors for noise in ABSOLUTE_NOISES]
        modifiers = MODIFIERS if decisions.modifiers else (0.0,)
        sets = (Hyperparameters(*each, modifiers[-1]) for each in product(noisy, COARSE_PAIRS))
        near = settled([fit_at(by.prior.mean, by, data) for by in sets])
        moved = [(fit, replace(fit.by, modifier=m)) for fit in near for m in modifiers]
        if len(data.seen):
            self._fits = settled([fit_at(fit.theta, by, data) for fit, by in moved])
        else:  # Before a policy with an unusual modifier was told nothing tells these apart.
            self._fits = [replace(fit, by=by) for fit, by in moved]

    def with_more(self, rows: NDArray[np.int64], gaps: Array) -> Sensitivity:
        """Return the belief after these trainings, those of this one among them, from its fit on.

        Hyperparameters that hardly count now are left out.
        """
        smallest_gap = self._fits[0].by.prior.smallest_gap
        other, data = copy.copy(self), observations_of(self.rows(rows), gaps, smallest_gap)
        other._fits = settled([fit_at(fit.theta, fit.by, data) for _, fit in self._weighed_fits()])
        return other

    def _weighed_fits(self) -> list[tuple[float, Fit]]:
        """Return the fits whose beliefs are averaged, with their weights."""
        pairs = zip(self.weights.tolist(), self._fits, strict=True)
        return [(weight, fit) for weight, fit in pairs if weight > LEAST_WEIGHT]

    def rows(self, rows: NDArray[np.int64]) -> Rows:
        """Return policies as the model reads them."""
        counted = self._decisions.counted()
        shares = [rows[:, place] == index for place, index in counted]
        modified = rows[:, len(self._decisions.places) :].T
        changed = [
            column == value
            for column, count in zip(modified, self._decisions.modifiers, strict=True)
            for value in range(1, count)
        ]
        return Rows(*(np.array(e, float).reshape(len(e), len(rows)).T for e in (shares, changed)))

    @property
    def weights(self) -> Array:
        """How much each set of hyperparameters counts: evidence and prior, sum 1."""
        prior = np.log([NOTHING if fit.by.modifier == 0.0 else 1.0 for fit in self._fits])
        evidence = np.array([fit.evidence for fit in self._fits]) + prior
        likely = np.exp(evidence - evidence.max())
        return np.asarray(likely / likely.sum())

    def predict(self, rows: NDArray[np.int64]) -> list[Belief]:
        """Return what is believed of the policies `rows` [n, places + modifiers]."""
        read = self.rows(rows)
        alike = read.alike(self._fits[0].told.rows)
        return [Belief(weight, *fit.predict(read, alike)) for weight, fit in self._weighed_fits()]

    def joint(self, some: NDArray[np.int64], rows: NDArray[np.int64], least: float) -> list[Joint]:
        """Return beliefs of `some` together and `rows` singly, by what counts `least` or more."""
        pairs = zip(self.weights, self._fits, strict=True)
        together, singly = self.rows(some), self.rows(rows)
        return [_joint(fit, float(w), together, singly) for w, fit in pairs if w >= least]

    def drawn(self, rows: NDArray[np.int64], draws: int, rng: np.random.Generator) -> Array:
        """Return draws of the scaled gaps of policies, of all of them together: [draws, n]."""
        return np.array([each.gaps for each in fantasies(self, rows, rows[:0], draws, rng)])

    def theta(self) -> Array:
        """Return the fitted logarithms of the sensitivities in nats, as `Decisions.counted`."""
        fits = zip(self.weights, self._fits, strict=True)
        return np.asarray(sum(weight * fit.theta for weight, fit in fits))


def _joint(fit: Fit, weight: float, some: Rows, rows: Rows) -> Joint:
    """Return what is believed after what was told, by one set of hyperparameters."""
    (mean, _), believed = (fit.predict(e, e.alike(fit.told.rows)) for e in (some, rows))
    among, across = fit.covariances(some, rows)
    return Joint(mean, among, Belief(weight, *believed), across)


LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class Fantasy:
    """One sample of the joint posterior: the scaled `gaps` [m] of what is outstanding.

    `belief` is that of other policies then, its weight the share of this among all samples.
    """

    gaps: Array
    belief: Belief


def fantasies(
    belief: Sensitivity,
    outstanding: NDArray[np.int64],
    rows: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
) -> list[Fantasy]:
    """Return `draws` samples of how the policies `outstanding` [m, places + modifiers] come out.

    A proposal averaged over them is not led astray by what is pending (Snoek, Larochelle and Adams,
    Practical Bayesian Optimization, NIPS 2012, section 3.3). In each is what is believed of `rows`
    [n, places + modifiers]. Sets of hyperparameters are drawn from as often as they count, and
    around each mean in pairs of opposite sign.
    """
    joints = belief.joint(outstanding, rows, 0.5 / draws)
    weights = np.array([joint.others.weight for joint in joints])
    # Rounding the running sum, not each share, gives counts that add up to `draws`.
    ends = np.rint(np.cumsum(weights / weights.sum()) * draws).astype(int)
    return [
        fantasy
        for joint, count in zip(joints, np.diff(ends, prepend=0).tolist(), strict=True)
        for fantasy in _samples(joint, count, draws, rng)
    ]


def nats(scaled: Array, smallest_gap: float) -> Array:
    """Return the gaps in nats of scaled ones."""
    return np.asarray(np.sign(scaled) * np.expm1(np.abs(scaled)) * smallest_gap)


def _samples(joint: Joint, count: int, draws: int, rng: np.random.Generator) -> list[Fantasy]:
    """Return `count` fantasies of one set of hyperparameters.

    With L the Cholesky factor of the covariance of what is outstanding, that is its mean plus L z;
    every other mean moves by its covariance over L, times z. Nothing is fitted anew.
    """
    factor = np.linalg.cholesky(joint.covariance)
    half = rng.standard_normal((len(factor), (count + 1) // 2))
    # Opposite draws (antithetic variates): the mean over them is exact for all that is linear.
    noise = np.concatenate([half, -half], axis=1)[:, :count]
    moves = solve_triangular(factor, joint.across, lower=True)
    gaps, means = joint.mean[:, None] + factor @ noise, joint.others.mean[:, None] + moves.T @ noise
    left = np.sqrt(np.maximum(joint.others.sd**2 - (moves * moves).sum(axis=0), LEAST_VARIANCE))
    return [Fantasy(gaps[:, k], Belief(1.0 / draws, means[:, k], left)) for k in range(count)]
