"""Which policies would fail, as those that did say: a few causes, each deadly or not.

A policy that diverged says little of how large the gaps of others are, and much of which diverge
too. Causes are all that is no float32, a kind of decision, a place, one decision, and chance; a
policy fails by any that it has (a noisy-or: Pearl, Probabilistic Reasoning in Intelligent Systems,
1988, section 4.3). One that trained clears all that it has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysearch.search.hypervolume import Array
from policysearch.space.options import Decisions

EVERYTHING, KIND, PLACE, DECISION = 0.4, 0.1, 0.1, 0.05
"""How likely each cause is deadly, before any training."""

BY_CHANCE = (0.5, 4.5)
"""Beta prior of the share of policies that fail by chance."""

SWEEPS = 24
"""Gibbs sweeps over the causes."""


@dataclass(frozen=True)
class Failures:
    """Draws of what is deadly: `deadly` [draws, causes] and `chance` [draws]."""

    decisions: Decisions
    deadly: NDArray[np.bool_]
    chance: Array

    def dead(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return which of the policies `rows` fail in each draw: [draws, n]."""
        caused = self.deadly.astype(float) @ causes_of(self.decisions, rows).T.astype(float) > 0.5
        return np.asarray(caused | (rng.random(caused.shape) < self.chance[:, None]))


def causes_of(decisions: Decisions, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which causes policies have: [n, causes]."""
    counted = decisions.counted()
    names = [decisions.places[place][index].name for place, index in counted]
    single = np.array([rows[:, place] == index for place, index in counted], bool)
    single = single.reshape(len(counted), len(rows)).T
    places, every = [str(place) for place, _ in counted], [""] * len(counted)
    shared = [
        single[:, np.array(group) == value].any(axis=1)
        for group in (names, places, every)
        for value in dict.fromkeys(group)
    ]
    return np.column_stack([*shared, single])


def _chances(decisions: Decisions) -> Array:
    """Return how likely each cause is deadly, in the order of `causes_of`: [causes]."""
    counted = decisions.counted()
    names = {decisions.places[place][index].name for place, index in counted}
    places = {place for place, _ in counted}
    shared = [KIND] * len(names) + [PLACE] * len(places) + [EVERYTHING] * bool(counted)
    return np.array([*shared, *[DECISION] * len(counted)])


def failures(
    decisions: Decisions,
    failed: NDArray[np.int64],
    trained: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
) -> Failures:
    """Return draws of what is deadly where the policies `failed` [n, ...] and `trained` did so.

    By Gibbs sampling, `draws` chains side by side: of one cause after the other, given the rest.
    """
    has, prior = causes_of(decisions, failed), _chances(decisions)
    cleared = causes_of(decisions, trained).any(axis=0)
    odds = np.log(prior) - np.log1p(-prior)
    deadly = rng.random((draws, len(prior))) < prior
    deadly[:, cleared] = False
    chance = rng.beta(*BY_CHANCE, size=draws)
    count = deadly.astype(np.int64) @ has.T.astype(np.int64)  # causes of each failure: [draws, n]
    open_causes = np.flatnonzero(~cleared & has.any(axis=0))
    for _ in range(SWEEPS if len(failed) else 0):
        for cause in rng.permutation(open_causes):
            count[:, has[:, cause]] -= deadly[:, cause, None]
            # Without it what no other explains has failed by chance.
            unexplained = (count[:, has[:, cause]] == 0).sum(axis=1)
            risen = odds[cause] - unexplained * np.log(chance)
            deadly[:, cause] = rng.random(draws) < 1.0 / (1.0 + np.exp(-risen))
            count[:, has[:, cause]] += deadly[:, cause, None]
        lucky = (count == 0).sum(axis=1)
        chance = rng.beta(BY_CHANCE[0] + lucky, BY_CHANCE[1] + len(trained))
    return Failures(decisions, deadly, chance)
