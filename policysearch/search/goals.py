"""What is wanted of one policy: the least gap, time or memory within limits of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from policysearch.search.acquisition import Yardstick, integrated
from policysearch.search.hypervolume import Array
from policysearch.search.posterior import Belief

Axis = Literal["gap", "time", "memory"]

SLACK = 1e-9
"""Relative: a price that equals a limit but for rounding is within it."""


@dataclass(frozen=True)
class Goal:
    """The least of one `axis` among policies within limits: gap in nats, costs over float32's."""

    axis: Axis
    gap: float = math.inf
    time: float = math.inf
    memory: float = math.inf

    def affordable(self, costs: Array) -> NDArray[np.bool_]:
        """Whether costs [n, 2] (time, memory) are within the limits: [n]."""
        limits = np.array([self.time, self.memory]) * (1.0 + SLACK)
        return np.asarray((costs <= limits).all(axis=1))

    def meets(self, gaps: Array, costs: Array) -> NDArray[np.bool_]:
        """Whether policies with gaps [n] in nats and costs [n, 2] are within all limits: [n]."""
        return self.affordable(costs) & (gaps <= self.gap)

    def within(self, gap: float, time: float, memory: float) -> bool:
        """Whether one policy is within all limits."""
        return bool(self.meets(np.array([gap]), np.array([[time, memory]]))[0])

    def values(self, gaps: Array, costs: Array, smallest_gap: float) -> Array:
        """Return what is to be small, infinity beyond the limits: [n].

        The logarithm of a cost, of which a difference is a share; or log(1 + gap / smallest_gap).
        """
        wanted = {
            "gap": np.log1p(np.maximum(gaps, 0.0) / smallest_gap),
            "time": np.log(costs[:, 0]),
            "memory": np.log(costs[:, 1]),
        }[self.axis]
        return np.where(self.meets(gaps, costs), wanted, np.inf)

    def expected_improvements(
        self, beliefs: Sequence[Belief], costs: Array, best: float, smallest_gap: float
    ) -> Array:
        """Return by how much n candidates are expected to be better than `best`: [n].

        `best` as in `values`. Of a cost, which is known, the improvement times the probability that
        the gap holds; of the gap the expected improvement (Schonlau, Welch and Jones, IMS Lecture
        Notes 34, 1998, have both).
        """
        if self.axis == "gap":
            most = min(best, math.log1p(self.gap / smallest_gap))
            gains = sum(
                each.weight
                * each.sd
                * (integrated((most - each.mean) / each.sd) - integrated(-each.mean / each.sd))
                for each in beliefs
            )
            return np.where(self.affordable(costs), gains, 0.0)
        holds = self.holds(beliefs, smallest_gap)
        better = np.maximum(best - np.log(costs[:, 0 if self.axis == "time" else 1]), 0.0)
        return np.where(self.affordable(costs), better * holds, 0.0)

    def holds(self, beliefs: Sequence[Belief], smallest_gap: float) -> Array:
        """Return how likely the gaps of policies are within the limit: [n]."""
        limit = math.log1p(self.gap / smallest_gap)
        return np.asarray(sum(e.weight * ndtr((limit - e.mean) / e.sd) for e in beliefs))

    def worst(self, costs: Array, measure: Yardstick) -> float:
        """Return a value, as in `values`, that no candidate with costs [n, 2] is beyond.

        That of float32 where it is within the limits: it is there without any training.
        """
        base = self.values(np.zeros(1), np.ones((1, 2)), measure.smallest_gap)[0]
        if np.isfinite(base):
            return float(base)
        if self.axis == "gap":
            return math.log1p(measure.largest_gap / measure.smallest_gap)
        column = costs[self.affordable(costs), 0 if self.axis == "time" else 1]
        return float(np.log(column.max())) + WORSE if len(column) else 0.0


WORSE = 0.05
"""By so much worse than the worst candidate is it, in log, to have found nothing."""


@dataclass(frozen=True)
class Left:
    """At 95 % no more than `share` is left, and `chance` bounds that anything is.

    `share` of the goal: by which part of it a policy may be better than the best found, 1 where
    none is found and one may be. Of the front: the part of the volume that is not found yet.
    """

    share: float
    chance: float


def separating(gaps: Sequence[float], holds: Sequence[bool]) -> float:
    """Return the gap in nats up to which something holds, as these gaps where it does say.

    That with the fewest on the wrong side, between two of them at their geometric middle; infinity
    where it always holds.
    """
    order = np.argsort(gaps, kind="stable")
    ordered, held = np.maximum(np.array(gaps, float)[order], TINY), np.array(holds, bool)[order]
    # Cut before place i: what holds from there on is wrong, and what does not hold before it.
    wrong = np.concatenate([[0], np.cumsum(~held)]) + held.sum()
    wrong -= np.concatenate([[0], np.cumsum(held)])
    cut = len(wrong) - 1 - int(wrong[::-1].argmin())
    if cut == len(ordered):
        return math.inf
    return float(np.sqrt(ordered[cut] * ordered[max(cut - 1, 0)]) if cut else 0.5 * ordered[0])


TINY = 1e-9
"""No gap counts as less, in nats, where a logarithm is taken."""
