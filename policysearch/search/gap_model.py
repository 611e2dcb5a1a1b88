"""The loss gap as a function of a policy's decisions, for one set of hyperparameters.

The model is that of `sensitivity.py`, on the scale sign(gap) log(1 + |gap| / smallest_gap). Near a
value of theta it is linear in theta, and all is Gaussian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysearch.search.hypervolume import Array
from policysearch.search.pair_terms import BY_ITSELF, far, far_own, near, own, squared
from policysearch.search.priors import OWN_SD, Prior

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
        found = [(here, there) for here, key in keys for there in places.get(key, ())]
        here, there = np.array(found, dtype=np.int64).reshape(len(found), 2).T
        return here, there

    def groups(self) -> NDArray[np.int64]:
        """Return a number [n] for each policy, from 0 on, equal for those that are alike."""
        numbers: dict[bytes, int] = {}
        found = [numbers.setdefault(key, len(numbers)) for key in _keys(self.shares)]
        return np.array(found, dtype=np.int64)


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
        found = far(self.roots, others.roots)
        found += self.features @ others.features.T
        return found

    def between(self, others: Gaps, alike: Pairs) -> Array:
        """Return the same with what is alike, as `Rows.alike` has it."""
        found, (here, there) = self.covariance(others), alike
        found[here, there] += self.apart[here] * others.apart[there]
        return found


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
    # What theta and pairs each have of a decision by itself are multiples of one column.
    alone = slopes * np.sqrt(OWN_SD**2 + BY_ITSELF * size**2)
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
