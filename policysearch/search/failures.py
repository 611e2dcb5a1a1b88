"""Which policies would fail, as those that did say: a few causes, each deadly or not.

A policy that diverged says little of how large the gaps of others are, and much of which diverge
too. Causes are all that is no float32, a kind of decision, a place, one decision, so many of a kind
(anywhere or in a row), two kinds side by side, two decisions together, and chance. A policy fails
by any that it has (a noisy-or: Pearl, Probabilistic Reasoning in Intelligent Systems, 1988, section
4.3). One that trained clears all that it has. A kind may be deadly under one value of a modifier
alone, as float16 without a loss scale is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from policysearch.search.hypervolume import Array
from policysearch.space.options import Decisions, Option

EVERYTHING, KIND, PLACE, DECISION = 0.4, 0.1, 0.1, 0.05
"""How likely each cause is deadly, before any training."""

PLACES, DECISIONS = 0.5, 0.75
"""At most so many deadly places and single decisions are expected in a net, however deep."""

OPERANDS, MODIFIED, MANY, BESIDE, TOGETHER = 0.15, 0.05, 0.02, 0.02, 0.1
"""How likely are the causes that combine: kinds that round operands alike, a kind under one value
of a modifier, so many of a kind, two kinds side by side, and two decisions together, shared out
among all pairs."""

MOST_PAIRS = 4096
"""Of more pairs of decisions only those in neighbouring places are causes."""

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
    combined: bool

    def dead(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return which of the policies `rows` fail in each draw: [draws, n]."""
        caused = self._deadly_rows(rows)
        return np.asarray(caused | (rng.random(caused.shape) < self.chance[:, None]))

    def chances(self, rows: NDArray[np.int64]) -> Array:
        """Return how likely each of the policies `rows` fails: [n]."""
        chances = np.where(self._deadly_rows(rows), 1.0, self.chance[:, None])
        return np.asarray(chances.mean(axis=0))

    def _deadly_rows(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        has = causes_of(self.decisions, rows, self.combined).T.astype(np.float32)
        return np.asarray(self.deadly.astype(np.float32) @ has > 0.5)


def causes_of(decisions: Decisions, rows: NDArray[np.int64], combined: bool) -> NDArray[np.bool_]:
    """Return which causes policies have, those that combine among them or not: [n, causes]."""
    return np.concatenate([has for _, has in _causes(decisions, rows, combined)], axis=1)


def _chances(decisions: Decisions, combined: bool) -> Array:
    """Return how likely each cause is deadly, in the order of `causes_of`: [causes]."""
    width = len(decisions.places) + len(decisions.modifiers)
    none = np.empty((0, width), dtype=np.int64)
    each = [np.full(has.shape[1], chance) for chance, has in _causes(decisions, none, combined)]
    return np.concatenate(each)


Has = NDArray[np.bool_]
"""Which policies have which of some causes: [n, causes]."""


def _causes(
    decisions: Decisions, rows: NDArray[np.int64], combined: bool
) -> Iterator[tuple[float, Has]]:
    """Yield how likely causes of one sort are deadly, and which of them policies have."""
    counted = decisions.counted()
    names = [decisions.places[place][index].name for place, index in counted]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    single = np.array([rows[:, place] == index for place, index in counted], bool)
    single = single.reshape(len(counted), len(rows)).T
    of_place = _any_of(single, [place for place, _ in counted])
    yield EVERYTHING, np.asarray(single.any(axis=1))[:, None]
    yield min(DECISION, DECISIONS / max(1, len(counted))), single
    yield min(PLACE, PLACES / max(1, of_place.shape[1])), of_place
    of_kind = _any_of(single, [numbers[name] for name in names])
    yield KIND, of_kind
    if not combined:
        return
    # Kinds that differ by how parameters are stored round operands alike.
    epsilons = [decisions.places[place][index].operand_epsilon for place, index in counted]
    if len(set(epsilons)) < len(numbers):
        yield OPERANDS, _any_of(single, epsilons)
    for at, count in enumerate(decisions.modifiers, len(decisions.places)):
        for value in range(count):
            yield MODIFIED, of_kind & (rows[:, at] == value)[:, None]
    chains = _chains(decisions)
    kinds = np.full((len(rows), len(decisions.places)), -1)
    for (place, _), name, has in zip(counted, names, single.T, strict=True):
        kinds[has, place] = numbers[name]
    yield from _of_chains(kinds, len(numbers), chains)
    first, second = _pairs(counted, chains).T
    yield TOGETHER / max(1, len(first)), single[:, first] & single[:, second]


def _of_chains(
    kinds: NDArray[np.int64], count: int, chains: list[list[int]]
) -> Iterator[tuple[float, Has]]:
    """Yield causes of runs and of neighbours, of kinds [n, places] from 0 on, -1 for float32."""
    for kind in range(count):
        yield MANY, _so_many(kinds == kind, chains)
    steps = np.array([step for chain in chains for step in pairwise(chain)], np.int64)
    left, right = (kinds[:, each] for each in steps.reshape(-1, 2).T)
    for one, other in combinations(range(count), 2):
        beside = ((left == one) & (right == other)) | ((left == other) & (right == one))
        yield BESIDE, beside.any(axis=1, keepdims=True)


def _any_of(single: Has, group: Sequence[float]) -> Has:
    """Return which policies have any decision of each group."""
    found = [single[:, np.array(group) == value].any(axis=1) for value in dict.fromkeys(group)]
    return np.array(found, bool).reshape(len(found), len(single)).T


def _chains(decisions: Decisions) -> list[list[int]]:
    """Return the places that decide the same thing, in their order: neighbours in the net."""
    chains: dict[tuple[Option, ...], list[int]] = {}
    for place, options in enumerate(decisions.places):
        chains.setdefault(options, []).append(place)
    return list(chains.values())


def _so_many(alike: Has, chains: list[list[int]]) -> Has:
    """Return which policies have 2, 4, 8, ... places of one kind, anywhere and in a row."""
    most = max(map(len, chains), default=0)
    least = [2**power for power in range(1, most.bit_length())]
    longest = np.zeros(len(alike), dtype=np.int64)
    for chain in chains:
        run = np.zeros(len(alike), dtype=np.int64)
        for place in chain:
            run = (run + 1) * alike[:, place]
            longest = np.maximum(longest, run)
    counts = alike.sum(axis=1), longest
    found = [count >= many for count in counts for many in least]
    return np.array(found, bool).reshape(len(found), len(alike)).T


def _pairs(counted: list[tuple[int, int]], chains: list[list[int]]) -> NDArray[np.int64]:
    """Return pairs of decisions of two places: all, or where there are many the neighbours'."""
    at: dict[int, list[int]] = {}
    for number, (place, _) in enumerate(counted):
        at.setdefault(place, []).append(number)
    places = list(combinations(at, 2))
    if len(counted) ** 2 > 2 * MOST_PAIRS:
        places = [step for chain in chains for step in pairwise(chain)]
    found = [(i, j) for one, other in places for i in at.get(one, ()) for j in at.get(other, ())]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def failures(
    decisions: Decisions,
    failed: NDArray[np.int64],
    trained: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
    combined: bool = False,
) -> Failures:
    """Return draws of what is deadly where the policies `failed` [n, ...] and `trained` did so.

    With `combined`, causes that combine among them: to choose by. A bound on what is left takes the
    broad ones alone, for with each cause more of what is left is thought dead.
    By Gibbs sampling, `draws` chains side by side: of one cause after the other, given the rest.
    """
    has, prior = causes_of(decisions, failed, combined), _chances(decisions, combined)
    cleared = causes_of(decisions, trained, combined).any(axis=0)
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
    return Failures(decisions, deadly, chance, combined)
