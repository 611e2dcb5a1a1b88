"""The loss gap as a function of a policy's decisions, for one set of hyperparameters.

The model is that of `sensitivity.py`, on the scale sign(gap) log(1 + |gap| / smallest_gap). Near a
value of theta it is linear in theta, and all is Gaussian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
    """Policies as numbers, zeros and ones.

    `shares` [n, decisions]: which decisions they cost; `changed` [n, values]: which unusual values
    their modifiers have.
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
    `roots` [n, decisions], the products of `features` [n, features] and of what modifiers move,
    `moved` [n, values], and that of `apart` [n] for those that are alike.
    """

    expected: Array
    slopes: Array
    roots: Array
    features: Array
    moved: Array
    apart: Array

    @property
    def variance(self) -> Array:
        """The prior variance [n] of each by itself."""
        # Modifiers by themselves: which one moves a gap shall not change a bit.
        moved = self.apart**2 + squared(self.moved)
        return np.asarray(far_own(self.roots**2) + squared(self.features) + moved)

    @cached_property
    def _columns(self) -> Array:
        return np.concatenate([self.features, self.moved], axis=1)

    def covariance(self, others: Gaps, alike: Pairs) -> Array:
        """Return the prior covariance [n, m] with others; `alike` as `Rows.alike` has it."""
        found, (here, there) = far(self.roots, others.roots), alike
        found += self._columns @ others._columns.T
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
        (by.modifier * gap / level)[:, None] * rows.changed,
        np.sqrt(UNSHARED * own(sizes, terms) + noise),
    )
