"""Policies of a large space that are best for drawn weights of gap, time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.search.effective import PER_LAYER, Effective
from policysearch.search.hypervolume import Array
from policysearch.search.rough_prices import RoughPrices, Rows
from policysearch.search.space import Params, Space

THETA_SD = 1.0
"""How far sensitivities are moved, in nats, to draw policies that a sure fit would not."""


class Draws:
    """Draws what the groups of a space decide, for given values of all that they share.

    By rough prices and the sensitivities that are thought likely, each group takes the best of all
    it can decide; then once more, with what it exchanges with its neighbours as they are.
    """

    def __init__(self, space: Space, effective: Effective, rough: RoughPrices) -> None:
        self._effective, self._rough = effective, rough
        self._groups = [group.name for group in space.groups]
        choices = space.choices()
        self._decided = [
            tuple((kind, choices[n]) for kind in PER_LAYER if (n := f"{kind}.{g}") in choices)
            for g in self._groups
        ]
        self._combined = {
            own: [dict(zip((k for k, _ in own), each, strict=True)) for each in values]
            for own in set(self._decided)
            for values in [list(product(*(values for _, values in own)))]
        }
        counted = {pair: i for i, pair in enumerate(effective.decisions.counted())}
        self._thetas = [
            np.array([counted.get((place, option), -1) for option in range(len(options))])
            for place, options in enumerate(effective.decisions.places)
        ]
        self._place = {name: i for i, name in enumerate(effective.places)}
        self._known: dict[Any, dict[str, NDArray[np.int64]]] = {}

    def drawn(
        self, common: Sequence[Params], theta: Array, rng: np.random.Generator
    ) -> list[Params]:
        """Return a policy for each of `common`, the values of what is decided for all groups."""
        count = len(common)
        share = rng.uniform(size=count)
        # A weight at which decisions as sensitive as a drawn one are torn.
        torn = theta[rng.integers(len(theta), size=count)] if len(theta) else np.zeros(count)
        weight = np.exp(rng.standard_normal(count) - torn) / max(1, sum(map(len, self._decided)))
        moved = np.exp(theta + THETA_SD * rng.standard_normal((count, len(theta))))
        gaps = weight[:, None] * np.column_stack([moved, np.zeros(count)])
        prices = np.column_stack([share, 1.0 - share])
        options = [self._options(slot, common) for slot in range(len(self._groups))]
        costs = [self._alone(slot, each, gaps, prices) for slot, each in enumerate(options)]
        chosen = [each.argmin(axis=1) for each in costs]
        every = np.arange(count)
        for slot, own in enumerate(options):
            beside = {
                other: {kind: each[every, chosen[other]] for kind, each in options[other].items()}
                for other in self._rough.near(slot)
            }
            costs[slot] += np.einsum("nck,nk->nc", self._rough.between(slot, own, beside), prices)
            chosen[slot] = costs[slot].argmin(axis=1)
        return [
            params | self._params([int(each[i]) for each in chosen])
            for i, params in enumerate(common)
        ]

    def _options(self, slot: int, common: Sequence[Params]) -> dict[str, Rows]:
        """Return by kind the option [n, combinations] of all that a group can decide."""
        own, group = self._decided[slot], self._groups[slot]
        found = []
        for params in common:
            key = own, tuple(sorted(params.items())), not own and group
            if key not in self._known:
                each = [
                    self._effective.options(
                        group, params | {f"{kind}.{group}": value for kind, value in one.items()}
                    )
                    for one in self._combined[own]
                ]
                self._known[key] = {kind: np.array([o[kind] for o in each]) for kind in each[0]}
            found.append(self._known[key])
        return {kind: np.stack([each[kind] for each in found]) for kind in found[0]}

    def _alone(self, slot: int, options: Mapping[str, Rows], gaps: Array, prices: Array) -> Array:
        """Return the weighted gap, time and memory [n, combinations] of a group by itself."""
        found: Array = np.einsum("nck,nk->nc", self._rough.within(slot, options), prices)
        every = np.arange(len(prices))[:, None]
        for kind, each in options.items():
            place = self._place[f"{kind}.{self._groups[slot]}"]
            found += gaps[every, self._thetas[place][each]]
        return found

    def _params(self, chosen: Sequence[int]) -> Params:
        return {
            f"{kind}.{group}": value
            for group, own, one in zip(self._groups, self._decided, chosen, strict=True)
            for kind, value in self._combined[own][one].items()
        }
