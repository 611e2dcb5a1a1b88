"""The loss gap as a function of a policy's decisions, for one set of hyperparameters.

The model is that of `posterior.py`, on the scale sign(gap) log(1 + |gap| / smallest_gap). Near a
value of theta it is linear in theta, and all is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policysearch.search.hypervolume import Array
from policysearch.space.options import Decisions, Option

COARSE = 2.0**-5
"""Machine epsilon from which on two decisions together are chance rather than a sum."""

OPERANDS, STORED = 16.0, 2.5
"""What rounding is thought to cost, over the largest gap and e: of operands per square of their
machine epsilon, for their errors are chance and a loss feels them to second order; of stored
parameters per machine epsilon, for small updates are lost, step after step."""

LEVEL_SD, KIND_SD, PLACE_SD, OWN_SD = 2.0, 1.0, 0.7, 0.5
"""Prior standard deviations of theta, in nats: for all, per kind, per place, its own."""

HINT, STORED_HINT = (0.9, 0.3), (0.4, 0.4)
"""Mean and standard deviation of how much theta rises with a hint, in nats: of what stores nothing
below float32, and of what does, for gradients do not see what updates lose."""


@dataclass(frozen=True)
class Prior:
    """Mean and covariance of theta, how coarse decisions are, the gap that is small, its noise.

    The covariance is a sum: a level for all, one per kind and one per place, its own, and multiples
    of each of the `hints` [decisions, any].
    `kinds` [decisions, kinds] are zeros and ones, `starts` the first decision of each place.
    `neighbours` [pairs, 2] are coarse decisions that round the tensor between two layers alike.
    """

    mean: Array
    kinds: Array
    starts: NDArray[np.int64]
    coarse: NDArray[np.bool_]
    neighbours: NDArray[np.int64]
    smallest_gap: float
    noise: float = 0.0
    hints: Array | None = None
    own_sd: float = OWN_SD

    def spread(self, slopes: Array) -> Array:
        """Return `slopes` [n, decisions] times the covariance [decisions, decisions].

        Summed level by level: of thousands of decisions the matrix itself would be too large.
        """
        # Each level of the hierarchy is one random number shared by some decisions, so its part of
        # the covariance is a block of ones: slopes are summed over the block and handed back to it.
        counts = np.diff(self.starts, append=slopes.shape[1])
        placed = np.add.reduceat(slopes, self.starts, axis=1) if len(counts) else slopes
        spread = LEVEL_SD**2 * slopes.sum(axis=1)[:, None] + self.own_sd**2 * slopes
        spread += KIND_SD**2 * ((slopes @ self.kinds) @ self.kinds.T)
        spread += PLACE_SD**2 * np.repeat(placed, counts, axis=1)
        if self.hints is not None:
            spread += (slopes @ self.hints) @ self.hints.T
        return np.asarray(spread)

    def common(self, slopes: Array) -> list[Array]:
        """Return columns [n, any] whose products between rows are those of `spread` and slopes.

        But for what each decision has of its own.
        """
        placed = np.add.reduceat(slopes, self.starts, axis=1) if len(self.starts) else slopes
        level = LEVEL_SD * slopes.sum(axis=1, keepdims=True)
        columns = [level, KIND_SD * (slopes @ self.kinds), PLACE_SD * placed]
        if self.hints is not None:
            columns.append(slopes @ self.hints)
        return columns


def prior_of(decisions: Decisions, smallest_gap: float, largest_gap: float) -> Prior:
    """Return the hierarchical Gaussian: a level for all, per kind of decision, per place, its own.

    Gaps in nats; `largest_gap` sets where it lies.
    """
    counted = decisions.counted()
    options = [decisions.places[place][index] for place, index in counted]
    _, starts = np.unique(np.array([place for place, _ in counted], int), return_index=True)
    names, kind = np.unique(_names(decisions), return_inverse=True)
    mean = math.log(largest_gap) + np.array([_level(option) for option in options])
    coarse = np.array([option.operand_epsilon >= COARSE for option in options], dtype=bool)
    neighbours = _neighbours(_names(decisions), coarse)
    return Prior(mean, np.eye(len(names))[kind], starts, coarse, neighbours, smallest_gap)


def _neighbours(name: NDArray[np.str_], coarse: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the pairs of coarse decisions that are the same in consecutive places: [pairs, 2]."""
    alike = [np.flatnonzero((name == each) & coarse) for each in np.unique(name)]
    pairs = [np.column_stack([each[:-1], each[1:]]) for each in alike]
    return np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs])


def with_hints(prior: Prior, decisions: Decisions, hints: Array) -> Prior:
    """Return the prior where theta has multiples of `hints` [decisions, any].

    As they differ within a kind. Each has a multiple of its own, known no better than its
    deviation, so that those told settle what it is worth.
    """
    names = _names(decisions)
    stores = np.array([decisions.places[p][i].storage_epsilon > 0 for p, i in decisions.counted()])
    mean, columns = prior.mean.copy(), []
    for hint in hints.T:
        for some, (slope, sd) in ((~stores, HINT), (stores, STORED_HINT)):
            centred = np.zeros(len(names))
            for name in np.unique(names[some]):
                alike = np.flatnonzero((names == name) & np.isfinite(hint))
                centred[alike] = hint[alike] - hint[alike].mean() if len(alike) else 0.0
            mean += slope * centred
            columns.append(sd * centred)
    return replace(prior, mean=mean, hints=np.stack(columns, axis=1))


def _names(decisions: Decisions) -> NDArray[np.str_]:
    """Return the name of each counted option."""
    return np.array([decisions.places[place][i].name for place, i in decisions.counted()], str)


def _level(option: Option) -> float:
    """Return the logarithm of what the option is thought to cost, over the largest gap."""
    operands, stored = OPERANDS * option.operand_epsilon**2, STORED * option.storage_epsilon
    return 1.0 + math.log(operands + stored)


FINE_PAIRS = 0.2
UNSHARED = 0.15
RELATIVE_NOISE = 0.03
"""Of the pair terms: for decisions that are not coarse, and the share that the neighbours of a
policy do not have in common with it. Noise over the gap."""

KNOWN_NOISE = 0.02
"""Noise of float32, which decides nothing, over the smallest gap."""

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Rows:
    """Policies as numbers.

    `shares` [n, decisions], zeros and ones: which decisions they cost; `changed` [n, values]: which
    unusual values their modifiers have, or how many of several policies have.
    """

    shares: Array
    changed: Array

    def alike(self, others: Rows) -> Pairs:
        """Return the places of policies, here and there, that cost the same decisions."""
        places: dict[bytes, list[int]] = {}
        for place, key in enumerate(_keys(others.shares)):
            places.setdefault(key, []).append(place)
        keys = enumerate(_keys(self.shares))
        pairs = [(here, there) for here, key in keys for there in places.get(key, ())]
        here, there = np.array(pairs, dtype=np.int64).reshape(len(pairs), 2).T
        return here, there

    def groups(self) -> NDArray[np.int64]:
        """Return a number [n] for each policy, from 0 on, equal for those that are alike."""
        numbers: dict[bytes, int] = {}
        each = [numbers.setdefault(key, len(numbers)) for key in _keys(self.shares)]
        return np.array(each, dtype=np.int64)


def _keys(shares: Array) -> Sequence[bytes]:
    return [row.tobytes() for row in np.packbits(shares.astype(bool), axis=1)]


@dataclass(frozen=True)
class Hyperparameters:
    """A prior, the size of pair terms and by how much of a gap a modifier may change it."""

    prior: Prior
    pairs: float
    modifier: float


@dataclass(frozen=True)
class Gaps:
    """The scaled gaps of n policies near a value of theta.

    `expected` [n] there and its `slopes` [n, decisions]. Their covariance is that of far pairs of
    `roots` [n, decisions], the products of `features` [n, features], and that of `apart` [n] for
    those that are alike. Beside all that a gap has `moving` [n] times what each unusual value of a
    modifier does, of variance one.
    """

    expected: Array
    slopes: Array
    roots: Array
    features: Array
    apart: Array
    moving: Array

    @property
    def variance(self) -> Array:
        """The prior variance [n] of each by itself, modifiers apart."""
        return np.asarray(far_own(self.roots**2) + squared(self.features) + self.apart**2)

    def covariance(self, others: Gaps) -> Array:
        """Return the prior covariance [n, m] with others, modifiers and what is alike apart."""
        covariance = far(self.roots, others.roots)
        covariance += self.features @ others.features.T
        return covariance

    def between(self, others: Gaps, alike: Pairs) -> Array:
        """Return the same with what is alike, as `Rows.alike` has it."""
        covariance, (here, there) = self.covariance(others), alike
        covariance[here, there] += self.apart[here] * others.apart[there]
        return covariance


# The scaled gap is y = log(1 + g / small) with g = sum of exp(theta) over the decisions of a
# policy. Near one theta it is linear, dy / dtheta = exp(theta) / (g + small): the `slopes`. All
# else that is believed in nats of g is a Gaussian whose deviation is divided by g + small to be one
# of y (the delta method). Since 0.5 (r.r')^2 = sum over i < j of r_i r_j r'_i r'_j, and half the
# squares, a polynomial kernel of second degree on roots r of the sizes gives every pair of
# decisions a term of its own, of deviation sqrt(s_i s_j), without listing pairs (Rasmussen and
# Williams, Gaussian Processes for Machine Learning, 2006, section 4.2.2).
def gaps_near(theta: Array, by: Hyperparameters, rows: Rows) -> Gaps:
    """Return the gaps of policies, linear in theta near this one."""
    prior, size = by.prior, np.where(by.prior.coarse, by.pairs, min(FINE_PAIRS, by.pairs))
    costs = np.exp(theta)
    gap = rows.shares @ costs
    level = gap + prior.smallest_gap
    slopes = rows.shares * costs / level[:, None]
    sizes = slopes * size
    roots = np.sqrt(sizes)
    terms = near(roots, prior.neighbours)
    # What theta and pairs each have of a decision by itself are multiples of one column, so that
    # one column with the sum of their variances stands for both.
    alone = slopes * np.sqrt(prior.own_sd**2 + BY_ITSELF * size**2)
    # Noise grows with the gap, and has a floor; of float32 itself only rounding is left.
    absolute = np.where(gap > 0.0, prior.noise, KNOWN_NOISE) * prior.smallest_gap
    noise = ((RELATIVE_NOISE * gap) ** 2 + absolute**2) / level**2
    return Gaps(
        np.log1p(gap / prior.smallest_gap),
        slopes,
        roots,
        np.concatenate([alone, terms, *prior.common(slopes)], axis=1),
        np.sqrt(UNSHARED * own(sizes, terms) + noise),
        by.modifier * gap / level,
    )


FAR_PAIRS = 0.5
COMMON = 1.0
SINGLE = 0.25
"""Size of the terms of decisions that are no neighbours, of what all neighbours have in common, and
variance of that of a decision by itself (it may help)."""

BY_ITSELF = SINGLE - 0.5 * FAR_PAIRS**2
"""Variance of a decision by itself beyond that of far pairs, where it is half a pair of its own."""


def far(left: Array, right: Array) -> Array:
    """Return the covariance [n, m] of the terms of far pairs, of policies with these roots.

    `left` [n, decisions] and `right` [m, decisions] are what each decision brings into pairs, as a
    root.
    """
    kernel = left @ right.T
    kernel *= kernel  # in place: the matrix is the largest thing there is
    kernel *= 0.5 * FAR_PAIRS**2
    return np.asarray(kernel)


def near(roots: Array, neighbours: NDArray[np.int64]) -> Array:
    """Return what is added to far pairs, each times the deviation of that term: [n, terms].

    Neighbours, and what neighbours have in common.
    """
    pairs = roots[:, neighbours[:, 0]] * roots[:, neighbours[:, 1]]
    together = COMMON * pairs.sum(axis=1, keepdims=True)
    return np.concatenate([np.sqrt(1.0 - FAR_PAIRS**2) * pairs, together], axis=1)


def own(sizes: Array, terms: Array) -> Array:
    """Return the variance [n] of the pair terms, of the squares of the roots and of `near`."""
    return np.asarray(far_own(sizes) + BY_ITSELF * squared(sizes) + squared(terms))


def far_own(sizes: Array) -> Array:
    """Return the diagonal [n] of `far`, of the squares of the roots."""
    return np.asarray(0.5 * FAR_PAIRS**2 * sizes.sum(axis=1) ** 2)


def squared(columns: Array) -> Array:
    """Return the sums of squares of the rows: [n]."""
    return np.asarray(np.einsum("ij,ij->i", columns, columns))
