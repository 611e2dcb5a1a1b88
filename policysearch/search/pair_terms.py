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


def shared(left: Array, right: Array, neighbours: NDArray[np.int64]) -> Array:
    """Return the covariance [n, m] of the pair terms of policies with these sizes."""
    once = left @ right.T
    (mine, weights), (theirs, _) = (_terms(sizes, neighbours) for sizes in (left, right))
    return np.asarray(0.5 * FAR_PAIRS**2 * once * once + (mine * weights) @ theirs.T)


def own(sizes: Array, neighbours: NDArray[np.int64]) -> Array:
    """Return the variance [n] of the pair terms: the diagonal of `_shared`."""
    once = (sizes * sizes).sum(axis=1)
    terms, weights = _terms(sizes, neighbours)
    return np.asarray(0.5 * FAR_PAIRS**2 * once * once + (terms * terms) @ weights)


def _terms(sizes: Array, neighbours: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return what is added to far pairs, [n, terms], and the variance of each of these terms.

    Decisions by themselves, which are half a pair of their own, neighbours, and what neighbours
    have in common.
    """
    near = sizes[:, neighbours[:, 0]] * sizes[:, neighbours[:, 1]]
    terms = np.concatenate([sizes * sizes, near, near.sum(axis=1, keepdims=True)], axis=1)
    variances = SINGLE - 0.5 * FAR_PAIRS**2, 1.0 - FAR_PAIRS**2, COMMON**2
    return terms, np.repeat(variances, [sizes.shape[1], near.shape[1], 1])
