"""What policies that were not trained may still bring: an upper bound, by draws of all their gaps.

The gaps are drawn together, for policies share what is unsure of them: one sensitivity that may be
lower than believed makes many of them better at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from policysearch.search.acquisition import Yardstick
from policysearch.search.failures import Failures
from policysearch.search.goals import Goal, Left
from policysearch.search.hypervolume import Array, front_of, hypervolume, improvements
from policysearch.search.posterior import Sensitivity, nats

SURE = 0.95
"""How sure the bound is."""

DRAWS, MOST = 128, 192
"""So many draws, of at most so many policies: those that may bring most."""

OPTIMISTIC = 3.0
"""By so many standard deviations below its mean is the gap that a policy may have at best."""

LEAST = 1e-3
"""A policy that even so brings a smaller share brings nothing."""


NOTHING = Left(0.0, 0.0)


def left_of_goal(
    goal: Goal,
    belief: Sensitivity,
    failing: Failures,
    rows: NDArray[np.int64],
    costs: Array,
    known: Array,
    measure: Yardstick,
    rng: np.random.Generator,
) -> Left:
    """Return what is left of a goal by policies `rows` with `costs` [n, 2], none of them trained.

    `known` [m, 3] are (time, memory, gap in nats) of those that were.
    """
    small = measure.smallest_gap
    found = goal.values(known[:, 2], known[:, :2], small).min(initial=np.inf)
    at_best = goal.values(np.zeros(len(rows)), costs, small)
    hopeful = np.flatnonzero(at_best < found - LEAST)
    if not len(hopeful):
        return NOTHING
    rows, costs = rows[hopeful], costs[hopeful]
    if goal.axis == "gap":
        most = min(found, np.log1p(goal.gap / small))
    else:
        most = np.log1p(goal.gap / small)
    chances = np.zeros(len(rows))
    for each in belief.predict(rows):
        chances += each.weight * ndtr((most - each.mean) / each.sd)
    chances *= 1.0 - failing.chances(rows)
    chance = min(1.0, float(chances.sum()))
    kept = np.argsort(-chances, kind="stable")[:MOST]
    drawn = _drawn(belief, failing, rows[kept], small, rng)
    best = np.array([goal.values(gaps, costs[kept], small).min() for gaps in drawn])
    gains = 1.0 - np.exp(np.minimum(best - found, 0.0)) if np.isfinite(found) else best < np.inf
    shares = np.asarray(gains, float)
    return Left(_upper(shares), min(chance, _most_likely(shares)))


def left_of_front(
    belief: Sensitivity,
    failing: Failures,
    rows: NDArray[np.int64],
    costs: Array,
    known: Array,
    measure: Yardstick,
    rng: np.random.Generator,
) -> Left:
    """Return what is left of the dominated volume; arguments as of `left_of_goal`."""
    small, corner = measure.smallest_gap, measure.corner
    front = front_of(measure.points(known[:, 2], known[:, :2]))
    volume = hypervolume(front, corner)
    beliefs = belief.predict(rows)
    best = np.min([each.mean - OPTIMISTIC * each.sd for each in beliefs], axis=0)
    gains = improvements(measure.points(nats(best, small), costs), front, corner)
    # What would bring most, but surely fails, keeps no other out.
    likely = gains * (1.0 - failing.chances(rows))
    kept = np.argsort(-likely, kind="stable")[:MOST]
    kept = kept[gains[kept] > LEAST * volume]
    if not len(kept):
        return NOTHING
    drawn = _drawn(belief, failing, rows[kept], small, rng)
    shares = np.zeros(len(drawn))
    for place, gaps in enumerate(drawn):
        points = np.concatenate([front, measure.points(gaps, costs[kept])])
        new = hypervolume(points, corner)
        shares[place] = (new - volume) / new if new > volume else 0.0
    return Left(_upper(shares), _most_likely(shares))


def _drawn(
    belief: Sensitivity,
    failing: Failures,
    rows: NDArray[np.int64],
    small: float,
    rng: np.random.Generator,
) -> Array:
    """Return draws of the gaps of policies in nats, infinite of those that fail: [draws, n]."""
    gaps = nats(belief.drawn(rows, DRAWS, rng), small)
    # Draws of the gaps come by hyperparameters, one set after the other.
    return np.where(failing.dead(rows, rng)[rng.permutation(DRAWS)], np.inf, gaps)


def _upper(shares: Array) -> float:
    """Return what no more than 1 - SURE of the draws exceed."""
    return float(np.quantile(shares, SURE, method="higher"))


def _most_likely(shares: Array) -> float:
    """Return a bound on the chance of a share above zero: the rule of three where none is."""
    return min(1.0, float((np.count_nonzero(shares > 0.0) + 3.0) / len(shares)))
