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

STORAGE_WEIGHT = 4.0
"""Prior of what rounding stored parameters costs, over rounding operands to the same format."""

LEVEL_SD, KIND_SD, PLACE_SD, OWN_SD = 3.0, 1.0, 0.7, 0.5
"""Prior standard deviations of theta, in nats: for all, per kind, per place, its own."""

HINT, HINT_SD = 0.5, 0.3
"""Mean and standard deviation of how much theta rises with a hint, in nats."""


@dataclass(frozen=True)
class Prior:
    """Mean and covariance of theta, how coarse decisions are, the gap that is small, its noise.

    `neighbours` [pairs, 2] are coarse decisions that round the tensor between two layers alike.
    """

    mean: Array
    covariance: Array
    coarse: NDArray[np.bool_]
    neighbours: NDArray[np.int64]
    smallest_gap: float
    noise: float = 0.0


def prior_of(decisions: Decisions, smallest_gap: float, largest_gap: float) -> Prior:
    """Return the hierarchical Gaussian: a level for all, per kind of decision, per place, its own.

    Gaps in nats; `largest_gap` sets where it lies.
    """
    counted = decisions.counted()
    options = [decisions.places[place][index] for place, index in counted]
    place = np.array([place for place, _ in counted])
    name = np.array([option.name for option in options])
    covariance = (
        LEVEL_SD**2
        + KIND_SD**2 * (name[:, None] == name)
        + PLACE_SD**2 * (place[:, None] == place)
        + OWN_SD**2 * np.eye(len(counted))
    )
    mean = math.log(largest_gap) + np.array([_level(option) for option in options])
    coarse = np.array([option.operand_epsilon >= COARSE for option in options], dtype=bool)
    return Prior(mean, covariance, coarse, _neighbours(name, coarse), smallest_gap)


def _neighbours(name: NDArray[np.str_], coarse: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the pairs of coarse decisions that are the same in consecutive places: [pairs, 2]."""
    alike = [np.flatnonzero((name == each) & coarse) for each in np.unique(name)]
    pairs = [np.column_stack([each[:-1], each[1:]]) for each in alike]
    return np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs])


def hinted(prior: Prior, decisions: Decisions, hints: Array) -> Prior:
    """Return the prior where theta has a multiple of the hints, as they differ within a kind."""
    names = np.array([decisions.places[place][index].name for place, index in decisions.counted()])
    given = np.zeros(len(prior.mean))
    for name in np.unique(names):
        alike = np.flatnonzero((names == name) & np.isfinite(hints))
        given[alike] = hints[alike] - hints[alike].mean() if len(alike) else 0.0
    covariance = prior.covariance + HINT_SD**2 * np.outer(given, given)
    return replace(prior, mean=prior.mean + HINT * given, covariance=covariance)


def _level(option: Option) -> float:
    """Return the logarithm of what the option is thought to cost, over the largest gap."""
    return 1.0 + math.log(option.operand_epsilon + STORAGE_WEIGHT * option.storage_epsilon)
