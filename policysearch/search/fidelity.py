"""Short runs: how long they are, whether they rank policies as whole runs do, what they propose.

A look is a run of a policy that is stopped early. What looks propose is gone on with to the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata, spearmanr

from policysearch.search.acquisition import Yardstick
from policysearch.search.hypervolume import Array, improvements

SHORT = 0.25
"""Share of the steps that a look takes."""

LEARNED = 1.0 / 3.0
"""Share of what float32 learns in all that it must have learned by the end of a look."""

CARRIES = 0.9
"""Rank correlation from which on looks are taken to rank policies."""

DOUBT = 0.5
"""Standard errors on Fisher's scale by which a rank correlation may lie below that: of eight
policies, one that moves three places leaves .86."""

BEYOND = 0.5
"""The least rank correlation of what prices leave: they rank policies too, and cost nothing."""

FEWEST = 5
"""So many policies must have been told before a rank correlation says anything."""

LOOK = 4
"""Looks per place of the space."""

PROPOSED = 0.999
"""Share of the volume of all that was looked at that the proposed have."""


def short_share(first_loss: float, short_loss: float, tail_loss: float) -> float:
    """Return SHORT where float32's own losses say that so short a run has learned, else 1.

    `first_loss` before any update, `short_loss` after SHORT of the steps, `tail_loss` at the end.
    """
    learned, in_all = first_loss - short_loss, first_loss - tail_loss
    return SHORT if learned >= LEARNED * in_all > 0.0 else 1.0


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation of pairs of gaps; NaN for fewer than FEWEST."""
    if len(pairs) < FEWEST:
        return np.nan
    first, second = zip(*pairs, strict=True)
    if min(first) == max(first) or min(second) == max(second):
        return 0.0
    return float(spearmanr(first, second).statistic)


def beyond_prices(pairs: Sequence[tuple[float, float]], costs: Array) -> float:
    """Return the rank correlation of pairs of gaps given their prices, `costs` [n, 2].

    That is the partial one: of the ranks, what is no linear function of those of the prices. NaN
    for fewer than FEWEST more pairs than prices, and where prices explain either gap whole.
    """
    if len(pairs) < FEWEST + costs.shape[1]:
        return np.nan
    ranks = rankdata(np.column_stack([np.array(pairs), costs]), axis=0)
    prices = np.column_stack([np.ones(len(pairs)), ranks[:, 2:]])
    left = ranks[:, :2] - prices @ np.linalg.lstsq(prices, ranks[:, :2], rcond=None)[0]
    sizes = np.linalg.norm(left, axis=0)
    if sizes.min() < 1e-6:
        return np.nan
    return float(left[:, 0] @ left[:, 1] / sizes.prod())


def carry(pairs: Sequence[tuple[float, float]], costs: Array) -> bool:
    """Whether looks rank policies by these pairs of gaps, for all that is known.

    `costs` [n, 2] are their prices: along a front the gap rises as they fall, so that a plain rank
    correlation is high whatever looks see.
    """
    doubt = DOUBT / math.sqrt(max(len(pairs), FEWEST) - 3)
    least = math.tanh(math.atanh(CARRIES) - doubt)
    return not (rank_correlation(pairs) < least or beyond_prices(pairs, costs) < BEYOND)


def proposed(measure: Yardstick, gaps: Array, costs: Array) -> list[int]:
    """Return the places of the policies to go on with, the one that adds most volume first.

    `gaps` [n] of looks in nats, `costs` [n, 2]. They have PROPOSED of the volume of all: what a
    look cannot tell from a neighbour is not worth a whole run.
    """
    points = measure.points(gaps, costs)
    enough = PROPOSED * measure.volume(gaps, costs)
    found: list[int] = []
    while measure.volume(gaps[found], costs[found]) < enough:
        found.append(int(improvements(points, points[found], measure.corner).argmax()))
    return found
