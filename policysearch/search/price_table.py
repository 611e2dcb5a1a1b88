"""The price table of a space: every assignment of its formats to its groups, by lookup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.tables import Choices, PriceTable, price_table
from policysearch.graph import Graph
from policysearch.objective.objective import Objective
from policysearch.search.hypervolume import Array
from policysearch.space.decided.base import Params
from policysearch.space.parallel import PREFIX
from policysearch.space.section import MODIFYING, is_named
from policysearch.space.space import Space

MOST_ERROR = 0.02
"""Relative error of a table's step times and peaks above which policies are priced one by one."""

MOST_TABLES = 8
"""More ways to decide what is no format are not tabled."""

FORMAT = "format."
UNTABLED = ("phase", PREFIX.removesuffix("."))
"""A table is of one step on one device."""
UNPRICED = tuple(name for name in MODIFYING if name != "loss_scale")
"""The value of a loss scale is a constant of the step: it changes no kernel."""


def format_table(
    objective: Objective, space: Space, others: Params, rng: np.random.Generator
) -> PriceTable:
    """Return the modeled prices of all formats on all groups; `others` are the other decisions.

    Slot i is the i-th group of the space and option j the j-th of its formats.
    """
    slots = {layer: i for i, group in enumerate(space.groups) for layer in group.layers}

    def graph_of(choices: Choices) -> Graph:
        return objective.step_graph(space.policy(others | formats_of(space, choices)))

    counts = [len(space.section.formats)] * len(space.groups)

    def slot_of(layer: str) -> int | None:
        return slots.get(objective.trained_layer(layer))

    return price_table(graph_of, counts, slot_of, objective.device, objective.stack, rng)


def formats_of(space: Space, choices: Choices) -> Params:
    """Return the decisions that an assignment of formats to groups is."""
    formats = space.section.formats
    chosen = zip(space.groups, choices, strict=True)
    return {f"{FORMAT}{group.name}": formats[option] for group, option in chosen}


class Lookup:
    """Costs of many policies of a space by price tables, one for each way to decide all else.

    `space` is cut into formats of groups and `ways`, every combination of its other decisions but
    those of UNPRICED.
    """

    def __init__(self, objective: Objective, space: Space, seed: int) -> None:
        self._objective, self._space, self._seed = objective, space, seed
        others = {n: v for n, v in space.choices().items() if self._decides(n)}
        every = product(*others.values())
        self.ways = [dict(zip(others, each, strict=True)) for each in every]
        self.names = [f"{FORMAT}{group.name}" for group in space.groups]
        self._places = {name: i for i, name in enumerate(space.section.formats)}
        self._tables: dict[int, PriceTable] = {}

    @staticmethod
    def _decides(name: str) -> bool:
        return not name.startswith(FORMAT) and name not in UNPRICED

    def way_of(self, params: Params) -> int:
        """Return the place in `ways` of a policy."""
        return self.ways.index({n: v for n, v in params.items() if self._decides(n)})

    def exact(self, way: int) -> bool:
        """Return whether the table of a way is near enough to exact prices."""
        table = self._table(way)
        return max(table.time_error, table.memory_error) <= MOST_ERROR

    def costs(self, every: Sequence[Params]) -> Array:
        """Return time and memory over float32's of policies: [n, 2]."""
        ways = np.array([self.way_of(params) for params in every], dtype=np.int64)
        choices = np.array(
            [[self._places[params[name]] for name in self.names] for params in every], dtype=np.intp
        ).reshape(len(every), len(self.names))
        costs = np.empty((len(every), 2))
        for way in np.unique(ways).tolist():
            mine = ways == way
            costs[mine] = np.column_stack(self._table(way).priced(choices[mine]))
        return costs / self._units

    def cheapest(self, way: int, weights: Array, more: Array) -> list[Params]:
        """Return policies of a way as `cheapest` finds them; weights of time and memory."""
        chosen = cheapest(self._table(way), weights / self._units, more)
        return [self.ways[way] | formats_of(self._space, tuple(row)) for row in chosen.tolist()]

    def _table(self, way: int) -> PriceTable:
        if way not in self._tables:
            rng = np.random.default_rng([self._seed, way])
            self._tables[way] = format_table(self._objective, self._space, self.ways[way], rng)
        return self._tables[way]

    @cached_property
    def _units(self) -> Array:
        base = self._objective.float32_price
        return np.array([base.time.step_seconds, float(base.memory.peak_bytes)])


def lookup_of(objective: Objective, space: Space, seed: int) -> Lookup | None:
    """Return the lookup of a space; None where it takes too many tables, or one is too far off."""
    ways = [len(v) for n, v in space.choices().items() if Lookup._decides(n)]
    if math.prod(ways) > MOST_TABLES or len(space.choices()) < len(space.groups):
        return None
    if objective.parallel.devices > 1 or any(is_named(n, UNTABLED) for n in space.choices()):
        return None
    lookup = Lookup(objective, space, seed)
    return lookup if lookup.exact(0) else None


def cheapest(table: PriceTable, weights: Array, more: Array) -> NDArray[np.intp]:
    """Return the cheapest assignments [n, slots], each by a sum of its own.

    The sum is `weights` [n, 2] times kernel seconds and the bytes live where options 0 need most,
    and `more` [n, slots, options]. Viterbi's algorithm (IEEE Trans. Inf. Theory 13(2), 1967) over
    the slots in their order: what neighbours exchange counts, and what others do at its mean.
    """
    # Forward: `best` [n, options] is the least sum up to a slot by the option taken there, and
    # `origins` says which option of the slot before it came from. Backward: the cheapest end is
    # followed to its start. O(slots options^2) for what would be options^slots sums.
    alone, pairs = _chain(table, weights)
    alone = alone + more
    best, origins = alone[:, 0], []
    for slot in range(1, alone.shape[1]):
        sums = best[:, :, None] + pairs[slot - 1] + alone[:, slot, None, :]
        origins.append(sums.argmin(axis=1))
        best = sums.min(axis=1)
    chosen = [best.argmin(axis=1)]
    for origin in reversed(origins):
        chosen.append(np.take_along_axis(origin, chosen[-1][:, None], axis=1)[:, 0])
    return np.stack(chosen[::-1], axis=1)


def _chain(table: PriceTable, weights: Array) -> tuple[Array, list[Array]]:
    """Return sums of slots [n, slots, options] and of pairs of neighbours, each [n, options, o]."""
    # The peak is a maximum over moments, which is no sum: the moment at which options 0 need most
    # stands for it. Terms of slots that are no neighbours in the chain count at their mean.
    slots, options = len(table.options), max(table.options)
    peak = 2 + int(table.summed(np.zeros((1, slots), dtype=np.intp))[0, 2:].argmax())
    alone = np.zeros((len(weights), slots, options))
    pairs = [np.zeros((len(weights), options, options)) for _ in range(slots - 1)]
    for slot, others, values in table.terms:
        costs = np.einsum("nk,abk->nab", weights, values[:, :, [0, peak]])
        if others == (slot,):
            alone[:, slot] += np.einsum("naa->na", costs)
        elif others == (slot + 1,):
            pairs[slot] += costs
        else:
            alone[:, slot] += costs.mean(axis=2)
    return alone, pairs
