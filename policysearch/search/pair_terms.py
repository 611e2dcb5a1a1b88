"""What pairs of decisions add to a gap, beyond the sum of their sensitivities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from policysearch.search.hypervolume import Array

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
    found = left @ right.T
    found *= found
    found *= 0.5 * FAR_PAIRS**2
    return np.asarray(found)


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
