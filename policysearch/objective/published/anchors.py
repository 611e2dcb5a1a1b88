"""Anchors: what related runs showed, carried over to modeled speedups.

The logarithm of published over modeled speedup is taken as a sum of independent parts, some of
which related rows share. Their variances are those that make the rows' errors likeliest; what is
expected of one row, given the errors of others, is the best linear prediction (kriging).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from policysearch.cost.roofline import Array
from policysearch.objective.published.rows import Setting

LARGEST_ERROR = 0.5
"""Larger errors, a factor of 1.65, count as this: published rows have outliers; assumed, with the
package's rows in view."""

LEAST_VARIANCE = 1e-6

START = (0.005, 0.005, 0.01)
"""Where the search for the variances begins."""


@dataclass(frozen=True)
class Parts:
    """Variances of the parts of a row's error.

    `run` is that of the part shared by rows of one family of networks in one version of a
    framework over one baseline format, `network` by those of one network and framework; `own` is
    shared with none.
    """

    run: float
    network: float
    own: float

    @property
    def whole(self) -> float:
        """Variance of an error of which nothing is known."""
        return self.run + self.network + self.own


@dataclass(frozen=True)
class Carried:
    """What anchors say of rows: the expected logarithm of published over modeled speedup, [rows].

    `spread` is the standard deviation that is left of it, `anchored` whether any anchor is related.
    """

    shift: Array
    spread: Array
    anchored: NDArray[np.bool_]


def likeliest(settings: Sequence[Setting], errors: Array) -> Parts:
    """Return the variances that make the errors of the rows likeliest, errors [rows]."""
    known = _bounded_errors(errors)
    shares = np.concatenate([_shared_parts(settings, settings), np.eye(len(known))[None]])

    def surprise(logarithms: Array) -> tuple[float, Array]:
        variances = np.exp(logarithms)
        covariance = np.tensordot(variances, shares, axes=1)
        inverse = np.linalg.inv(covariance)
        white = inverse @ known
        value = (np.linalg.slogdet(covariance)[1] + known @ white) / 2
        slopes = (shares * (inverse - np.outer(white, white))).sum(axis=(1, 2)) / 2
        return float(value), variances * slopes

    bounds = [(np.log(LEAST_VARIANCE), 0.0)] * len(START)
    found = minimize(surprise, np.log(START), jac=True, bounds=bounds)
    return Parts(*np.exp(found.x).tolist())


def carried(
    settings: Sequence[Setting],
    anchors: Sequence[Setting],
    errors: Array,
    parts: Parts,
    usable: NDArray[np.bool_],
) -> Carried:
    """Return what the anchors, of errors [anchors], say of the rows.

    `usable`, [rows, anchors], tells which of them may.
    """
    known = _bounded_errors(errors)
    between = _covariance(_shared_parts(anchors, anchors), parts) + parts.own * np.eye(len(known))
    towards = _covariance(_shared_parts(settings, anchors), parts) * usable
    shift, left = np.zeros(len(settings)), np.full(len(settings), parts.whole)
    related = np.asarray(towards.any(axis=1))
    masks, which = np.unique(usable, axis=0, return_inverse=True)
    for i, mask in enumerate(masks):
        rows = np.flatnonzero(which.reshape(-1) == i)
        cross = towards[np.ix_(rows, mask)]
        weights = np.linalg.solve(between[np.ix_(mask, mask)], cross.T)
        shift[rows] = known[mask] @ weights
        left[rows] -= (cross.T * weights).sum(axis=0)
    return Carried(shift, np.sqrt(left), related)


def _bounded_errors(errors: Array) -> Array:
    return np.clip(errors, -LARGEST_ERROR, LARGEST_ERROR)


def _covariance(shared: Array, parts: Parts) -> Array:
    return np.tensordot([parts.run, parts.network], shared, axes=1)


def _shared_parts(settings: Sequence[Setting], others: Sequence[Setting]) -> Array:
    """Return whether rows share each part with others, [2, rows, others]."""
    mine, theirs = ([_keys(setting) for setting in rows] for rows in (settings, others))
    equal = [[[a == b for a, b in zip(m, t, strict=True)] for t in theirs] for m in mine]
    return np.array(equal, np.float64).reshape(len(mine), len(theirs), 2).transpose(2, 0, 1)


def _keys(setting: Setting) -> tuple[Hashable, Hashable]:
    """Return what rows that share a part have in common, in the order of the parts."""
    wide, network = setting.precisions[0], setting.network
    return (
        (network.family, setting.row.framework, wide.products, wide.convolutions),
        (network.name, setting.stacks.framework),
    )
