"""What a policy is worth to a search: expected new volume, and what was gained, or missed.

Against the corner of float32 the presets alone have nearly all of the dominated volume, so what a
search adds could not be seen. Gain over the presets and regret are fixed before any training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from policysearch.search.hypervolume import (
    Array,
    hypervolume,
)
from policysearch.search.posterior import Belief

SMALLEST_GAP = 1e-4
"""The gap axis is linear to about this many nats and logarithmic from there."""

MARGIN = (1.05, 1.15)
"""How much further out than a preset's time and memory the corner lies, and what beats a preset."""

LARGEST_GAP = 0.05
"""The loss gap, in nats, from which on a policy adds nothing."""

BUDGETS = tuple(float(gap) for gap in np.geomspace(1e-6, LARGEST_GAP, 24))
"""The loss gaps, in nats, that `regret` is asked for."""


@dataclass(frozen=True)
class Yardstick:
    """The scale of the gap and the corner that volumes are measured from.

    `smallest_gap` and `largest_gap` in nats; `time` is a step's over float32's, `memory` a peak's
    over float32's.
    """

    time: float
    memory: float
    smallest_gap: float = SMALLEST_GAP
    largest_gap: float = LARGEST_GAP

    @property
    def corner(self) -> Array:
        """The reference point (gap on its scale, time, memory): [3]."""
        return np.array([1.0, self.time, self.memory])

    def scaled(self, gaps: Array) -> Array:
        """Return gaps in nats on the axis: 0 at no gap and below, 1 at `largest_gap` and above."""
        # Gaps span decades, and the least of them are noise: log1p is linear up to the smallest gap
        # that counts and a logarithm above, so each decade is worth as much volume as another.
        most = math.log1p(self.largest_gap / self.smallest_gap)
        return np.asarray(
            np.clip(np.log1p(np.maximum(gaps, 0.0) / self.smallest_gap) / most, 0.0, 1.0)
        )

    def points(self, gaps: Array, costs: Array) -> Array:
        """Return points [n, 3] of gaps [n] in nats and costs [n, 2] (time, memory)."""
        return np.column_stack([self.scaled(gaps), costs])

    def volume(self, gaps: Array, costs: Array) -> float:
        """Return the dominated volume of policies with these gaps [n] and costs [n, 2]."""
        return hypervolume(self.points(gaps, costs), self.corner)


def yardstick(presets: Array) -> Yardstick:
    """Return the yardstick of presets with costs [n, 2]; their gaps play no part.

    Its corner is the slowest time and the largest memory among the presets that no other beats in
    both by more than MARGIN, each that much further out. The gap is cut
    at LARGEST_GAP. Raises ValueError for no presets.
    """
    if not len(presets):
        raise ValueError("yardstick of no presets")
    margin = np.array(MARGIN)
    slower = presets[:, None, :] > presets[None, :, :] * margin
    beaten = np.any(np.all(slower, axis=2), axis=1)
    time, memory = (presets[~beaten] * margin).max(axis=0)
    return Yardstick(float(time), float(memory))


def gain(measure: Yardstick, gaps: Array, costs: Array, presets: Sequence[int]) -> float:
    """Return the volume that all policies dominate and the `presets` (their places) alone do not.

    `gaps` [n] in nats, `costs` [n, 2].
    """
    places = list(presets)
    return measure.volume(gaps, costs) - measure.volume(gaps[places], costs[places])


def regret(gaps: Array, costs: Array, trained: Sequence[int]) -> Array:
    """Return per budget of BUDGETS how much slower and larger the best found is: [24, 2].

    `gaps` [n] in nats and `costs` [n, 2] of every policy there is, `trained` the places of those
    that were trained. A value of 0.02 says that the best one found within that gap takes 2 % more
    time (or memory) than the best one there is; infinity that none was found though there is one,
    0 that there is none.
    """
    return np.array([_regret(gaps, costs, list(trained), budget) for budget in BUDGETS])


def _regret(gaps: Array, costs: Array, trained: list[int], budget: float) -> Array:
    within = gaps <= budget
    if not within.any():
        return np.zeros(2)
    mine = costs[trained][within[trained]]
    best = mine.min(axis=0) if len(mine) else np.full(2, np.inf)
    return np.asarray(best / costs[within].min(axis=0) - 1.0)


FLOAT32 = Yardstick(1.05, 1.15)
"""Volumes are measured from float32 until a policy of the ladder is `AS_GOOD`."""


def expected_improvements(
    beliefs: Sequence[Belief], cuts: Array, free: Array, measure: Yardstick
) -> Array:
    """Return the expected new volume of n candidates: [n].

    `cuts` [k + 1] and `free` [k, n] as `free_areas` gives them. The integral over the gap axis of
    the free area times the chance of a gap below, in closed form: the exact expected hypervolume
    improvement (Emmerich, Deutz and Klinkenberg, IEEE CEC 2011), short because only one axis is
    uncertain. The new volume of a policy of gap G is the integral of free(g) over g >= G, so its
    mean is that of free(g) P(G <= g); free is constant between cuts.
    """
    # The axis is the scale of the belief, over its value at the largest gap.
    unit = np.log1p(measure.largest_gap / measure.smallest_gap)
    gains = np.zeros(free.shape[1])
    for belief in beliefs:
        mean, sd = belief.mean / unit, belief.sd / unit
        below = integrated((cuts[:, None] - mean) / sd) * sd
        gains += belief.weight * (free * np.diff(below, axis=0)).sum(axis=0)
    return gains


def integrated(z: Array) -> Array:
    """Return the integral of the standard normal distribution function up to `z`."""
    # By parts: z Phi(z) less the integral of z phi(z), which is -phi(z).
    return np.asarray(z * ndtr(z) + np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi))
