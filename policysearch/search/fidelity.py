"""Evaluations of low fidelity: how long they are, whether they rank policies, what they promote.

An evaluation is a run that is stopped early, or one of a narrow net. What promises most by these
is trained whole, so long as they rank policies as whole runs do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policysearch.search.acquisition import Yardstick
from policysearch.search.hypervolume import Array, improvements

SHORT = 0.25
"""Share of the steps that a short run takes."""

LEAST_LEARNED = 1.0 / 3.0
"""Share of what float32 learns in all that it must have learned by the end of a short run."""

LEAST_CORRELATION = 0.9
"""Rank correlation from which on low fidelity is taken to rank policies."""

DOUBT = 0.5
"""Standard errors on Fisher's scale by which a rank correlation may lie below that: of eight
policies, one that moves three places leaves .86."""

BEYOND = 0.5
"""The least rank correlation of what prices leave: they rank policies too, and cost nothing."""

FEWEST = 5
"""So many policies must have been told before a rank correlation says anything."""

RUNS_PER_PLACE = 4
"""Evaluations per place of the space."""

VOLUME_SHARE = 0.999
"""Share of the volume of all that was evaluated that the promising have."""


@dataclass(frozen=True)
class Fidelity:
    """A cheaper run that stands for a policy's whole run with the same `seed`, over `steps` steps.

    It is stopped after SHORT of the steps or, with `narrow`, is one over all of them of a net of
    that share of the widths.
    """

    seed: int
    steps: int
    narrow: float | None = None

    @property
    def name(self) -> str:
        """What such runs are called."""
        return "short runs" if self.narrow is None else "narrow runs"

    @property
    def stop(self) -> int | None:
        """The step that a run is stopped after; None where it takes all of them."""
        return math.ceil(SHORT * self.steps) if self.narrow is None else None

    @property
    def until(self) -> int:
        """The steps that a run takes."""
        return self.stop or self.steps

    @property
    def width(self) -> float:
        """The share of the widths that is trained."""
        return self.narrow or 1.0

    @property
    def worth(self) -> float:
        """What a run costs, in whole runs."""
        return self.narrow or SHORT


def short_share(first_loss: float, short_loss: float, tail_loss: float) -> float:
    """Return SHORT where float32's own losses say that so short a run has learned, else 1.

    `first_loss` before any update, `short_loss` after SHORT of the steps, `tail_loss` at the end.
    """
    learned, in_all = first_loss - short_loss, first_loss - tail_loss
    return SHORT if learned >= LEAST_LEARNED * in_all > 0.0 else 1.0


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's rank correlation of pairs of gaps; NaN for fewer than FEWEST."""
    if len(pairs) < FEWEST:
        return np.nan
    first, second = zip(*pairs, strict=True)
    if min(first) == max(first) or min(second) == max(second):
        return 0.0
    from scipy.stats import spearmanr  # half a second, which only this should wait for

    return float(spearmanr(first, second).statistic)


def beyond_prices(pairs: Sequence[tuple[float, float]], costs: Array) -> float:
    """Return the rank correlation of pairs of gaps given their prices, `costs` [n, 2].

    That is the partial one: of the ranks, what is no linear function of those of the prices. NaN
    for fewer than FEWEST more pairs than prices, and where prices explain either gap whole.
    """
    if len(pairs) < FEWEST + costs.shape[1]:
        return np.nan
    from scipy.stats import rankdata

    # Residuals of the ranks after a regression on the ranks of prices: their correlation is the
    # partial rank correlation (Kendall and Stuart, The Advanced Theory of Statistics, ch. 27).
    ranks = rankdata(np.column_stack([np.array(pairs), costs]), axis=0)
    prices = np.column_stack([np.ones(len(pairs)), ranks[:, 2:]])
    left = ranks[:, :2] - prices @ np.linalg.lstsq(prices, ranks[:, :2], rcond=None)[0]
    sizes = np.linalg.norm(left, axis=0)
    if sizes.min() < 1e-6:
        return np.nan
    return float(left[:, 0] @ left[:, 1] / sizes.prod())


def ranks_alike(pairs: Sequence[tuple[float, float]], costs: Array) -> bool:
    """Whether low fidelity ranks policies by these pairs of gaps, for all that is known.

    `costs` [n, 2] are their prices: along a front the gap rises as they fall, so that a plain rank
    correlation is high whatever the runs say.
    """
    # On Fisher's scale, atanh of a correlation, the standard error is 1 / sqrt(n - 3) whatever the
    # correlation (Fisher, Biometrika 10, 1915).
    doubt = DOUBT / math.sqrt(max(len(pairs), FEWEST) - 3)
    least = math.tanh(math.atanh(LEAST_CORRELATION) - doubt)
    return not (rank_correlation(pairs) < least or beyond_prices(pairs, costs) < BEYOND)


def promising(measure: Yardstick, gaps: Array, costs: Array) -> list[int]:
    """Return the places of the policies to go on with, the one that adds most volume first.

    `gaps` [n] at low fidelity in nats, `costs` [n, 2]. They have VOLUME_SHARE of the volume of all:
    what cannot be told from a neighbour there is not worth a whole run.
    """
    points = measure.points(gaps, costs)
    enough = VOLUME_SHARE * measure.volume(gaps, costs)
    chosen: list[int] = []
    # Greedy: the dominated volume is submodular, so each step takes the largest addition and the
    # greedy set has at least 1 - 1/e of what the best set of its size has (Nemhauser et al., 1978).
    while measure.volume(gaps[chosen], costs[chosen]) < enough:
        chosen.append(int(improvements(points, points[chosen], measure.corner).argmax()))
    return chosen
