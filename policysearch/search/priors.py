"""What is believed before any training of what each decision costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policysearch.search.decisions import Decisions, Option
from policysearch.search.hypervolume import Array

COARSE = 2.0**-5
"""Machine epsilon from which on two decisions together are chance rather than a sum."""

OPERANDS, STORED = 16.0, 2.5
"""What rounding is thought to cost, over the largest gap and e: of operands per square of their
machine epsilon, for their errors are chance and a loss feels them to second order; of stored
parameters per machine epsilon, for small updates are lost, step after step."""

LEVEL_SD, KIND_SD, PLACE_SD, OWN_SD = 2.0, 1.0, 0.7, 0.5
"""Prior standard deviations of theta, in nats: for all, per kind, per place, its own."""

HINT, HINT_SD = 0.5, 0.3
"""Mean and standard deviation of how much theta rises with a hint, in nats."""


@dataclass(frozen=True)
class Prior:
    """Mean and covariance of theta, how coarse decisions are, the gap that is small, its noise.

    The covariance is a sum: a level for all, one per kind and one per place, its own, and `hints`.
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

    def spread(self, slopes: Array) -> Array:
        """Return `slopes` [n, decisions] times the covariance [decisions, decisions].

        Summed level by level: of thousands of decisions the matrix itself would be too large.
        """
        counts = np.diff(self.starts, append=slopes.shape[1])
        placed = np.add.reduceat(slopes, self.starts, axis=1) if len(counts) else slopes
        found = LEVEL_SD**2 * slopes.sum(axis=1)[:, None] + OWN_SD**2 * slopes
        found += KIND_SD**2 * ((slopes @ self.kinds) @ self.kinds.T)
        found += PLACE_SD**2 * np.repeat(placed, counts, axis=1)
        if self.hints is not None:
            found += HINT_SD**2 * (slopes @ self.hints)[:, None] * self.hints
        return np.asarray(found)

    def common(self, slopes: Array) -> list[Array]:
        """Return columns [n, any] whose products between rows are those of `spread` and slopes.

        But for what each decision has of its own.
        """
        placed = np.add.reduceat(slopes, self.starts, axis=1) if len(self.starts) else slopes
        level = LEVEL_SD * slopes.sum(axis=1, keepdims=True)
        found = [level, KIND_SD * (slopes @ self.kinds), PLACE_SD * placed]
        if self.hints is not None:
            found.append(HINT_SD * (slopes @ self.hints)[:, None])
        return found


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


def hinted(prior: Prior, decisions: Decisions, hints: Array) -> Prior:
    """Return the prior where theta has a multiple of the hints, as they differ within a kind."""
    names = _names(decisions)
    given = np.zeros(len(prior.mean))
    for name in np.unique(names):
        alike = np.flatnonzero((names == name) & np.isfinite(hints))
        given[alike] = hints[alike] - hints[alike].mean() if len(alike) else 0.0
    return replace(prior, mean=prior.mean + HINT * given, hints=given)


def _names(decisions: Decisions) -> NDArray[np.str_]:
    """Return the name of each counted option."""
    return np.array([decisions.places[place][i].name for place, i in decisions.counted()], str)


def _level(option: Option) -> float:
    """Return the logarithm of what the option is thought to cost, over the largest gap."""
    operands, stored = OPERANDS * option.operand_epsilon**2, STORED * option.storage_epsilon
    return 1.0 + math.log(operands + stored)
