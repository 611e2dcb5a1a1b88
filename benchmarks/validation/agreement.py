"""How well modeled speedups agree with measured ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

FEWEST_ALIKE = 3
"""So many policies of equal share are ranked."""


@dataclass(frozen=True)
class Agreement:
    """Modeled against measured speedups of policies of one net, errors as shares of the measured.

    `rank` correlations are Spearman's; those `within` are means over groups of equal FLOP share,
    weighted by their size, which the share itself cannot rank. `slower` counts policies measured
    slower than float32 by more than the retest error, `found` those of them that are modeled
    slower, `called` all that are, `faster` those of them that were measured faster, and `false`
    those measured faster by more than the retest error.
    """

    mean_error: float
    p90_error: float
    retest_error: float
    rank: float
    retest_rank: float
    flops_rank: float
    rank_within: float
    retest_rank_within: float
    slower: int
    found: int
    called: int
    faster: int
    false: int


def agreement(
    modeled: Sequence[float],
    measured: Sequence[float],
    halves: tuple[Sequence[float], Sequence[float]],
    shares: Sequence[float],
) -> Agreement:
    """Return how `modeled` speedups agree with the `measured`, of which `halves` are a retest.

    `shares` are the policies' shares of low-precision FLOPs, the baseline that ranks them too.
    """
    model, truth, share = (np.asarray(given, float) for given in (modeled, measured, shares))
    first, second = (np.asarray(half, float) for half in halves)
    errors = np.abs(model / truth - 1)
    retest = float(np.mean(np.abs(first / second - 1)))
    groups = np.round(share, 6)
    slower, called = truth < 1 - retest, model < 1
    return Agreement(
        mean_error=float(errors.mean()),
        p90_error=float(np.quantile(errors, 0.9)),
        retest_error=retest,
        rank=rank(model, truth),
        retest_rank=rank(first, second),
        flops_rank=rank(share, truth),
        rank_within=within(groups, model, truth),
        retest_rank_within=within(groups, first, second),
        slower=int(slower.sum()),
        found=int((slower & called).sum()),
        called=int(called.sum()),
        faster=int((called & (truth > 1)).sum()),
        false=int((called & (truth > 1 + retest)).sum()),
    )


def rank(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation, corrected for ties; 0 where one side is constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = float(spearmanr(one, other)[0])
    return 0.0 if np.isnan(found) else found


def within(groups: np.ndarray, one: np.ndarray, other: np.ndarray) -> float:
    """Return the mean rank correlation inside the groups of at least FEWEST_ALIKE members."""
    places = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    places = [place for place in places if len(place) >= FEWEST_ALIKE]
    if not places:
        return 0.0
    found = [rank(one[place], other[place]) for place in places]
    return float(np.average(found, weights=[len(place) for place in places]))
