"""Costs of policies of a space too large to be priced one by one, near enough to choose among them.

A few policies drawn at random are priced exactly and taken apart by group. What a group takes over
its mean is fitted by ridge regression (Hoerl and Kennard, Technometrics 12(1), 1970) to what is
decided for it: its format, alone and together with each other decision and with the formats of the
groups that it exchanges values with, alike for all groups; and each decision alone, for each group
by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsmr

from policysearch.cost.roofline import joined_seconds
from policysearch.cost.tables import neighbours_in, slot_prices
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.search.hypervolume import Array
from policysearch.space.decided.base import Params
from policysearch.space.encoding import PER_LAYER, Encoding
from policysearch.space.space import Space

PRICED = 32
"""Policies that are priced exactly and taken apart, half of them nearly the same in all groups."""

SAME = 0.9
"""Chance of a group of one of those to be decided as the first is."""

RIDGE, OWN = 0.1, 0.3
"""Penalty of an effect, in groups that have it; how large one of a single group is beside it."""

EXCHANGED = ("format", "output")
"""What of a group that it exchanges values with may change what a group takes."""

Rows = NDArray[np.int64]
Taken = tuple[Array, dict[str, Array]]
"""Seconds by group, and bytes by moment and group; what is of no group last."""


class PriceEstimate:
    """Time and memory over float32's of any row of `encoding`, fitted to PRICED exact prices."""

    def __init__(self, objective: Objective, space: Space, encoding: Encoding, seed: int) -> None:
        self._objective = objective
        self._slots = {layer: i for i, g in enumerate(space.groups) for layer in g.layers}
        self._count = len(space.groups)
        graph = objective.step_graph(objective.float32)
        self._near = [
            sorted(each.slots) for each in neighbours_in(graph, self._slot_of, self._count)
        ]
        places = {name: i for i, name in enumerate(encoding.places)}
        self._own = [
            {k: places[name] for k in PER_LAYER if (name := f"{k}.{group.name}") in places}
            for group in space.groups
        ]
        grouped = {place for own in self._own for place in own.values()}
        self._common = [place for place in places.values() if place not in grouped]
        self._width = max(map(len, encoding.decisions.places))
        drawn = _drawn(space, np.random.default_rng(seed))
        rows = np.array([encoding.row(params) for params in drawn], dtype=np.int64)
        self._fit(rows, [self._taken(space.policy(params)) for params in drawn])

    def _slot_of(self, layer: str) -> int | None:
        return self._slots.get(self._objective.trained_layer(layer))

    def costs(self, rows: Rows) -> Array:
        """Return time and memory [n, 2] of rows [n, places + modifiers]."""
        costs = np.tile(self._rest, (len(rows), 1))
        for slot, mean in enumerate(self._means):
            costs += mean * (1.0 + self._effects[self._features(slot, rows)].sum(axis=1))
        return np.column_stack([costs[:, 0], costs[:, 1:].max(axis=1)])

    def near(self, slot: int) -> list[int]:
        """Return the groups that a group exchanges values with, by their number."""
        return self._near[slot]

    def within(self, slot: int, options: Mapping[str, Rows]) -> Array:
        """Return what options of a group add to time and memory by themselves: [..., 2].

        `options` are by kind; memory is the mean of the moments that may be the peak.
        """
        format, wide = options["format"], self._width
        first = self._alike + slot * self._alone
        effects = np.zeros((*format.shape, self._effects.shape[1]))
        for i, kind in enumerate(self._own[slot]):
            shared = PER_LAYER.index(kind) * wide * wide + format * wide + options[kind]
            effects += self._effects[shared] + self._effects[first + i * wide + options[kind]]
        return _axes(self._means[slot] * effects)

    def between(
        self, slot: int, options: Mapping[str, Rows], others: Mapping[int, Mapping[str, Rows]]
    ) -> Array:
        """Return what a group and its neighbours add by what they exchange: [n, options, 2].

        `options` [n, options] are those of the group by kind, `others` [n] those of its neighbours.
        """
        costs = np.zeros((*options["format"].shape, self._effects.shape[1]))
        for other, theirs in others.items():
            for at, kind in enumerate(EXCHANGED, len(PER_LAYER)):
                table = at * self._width**2
                if kind in theirs:
                    cells = options["format"] * self._width + theirs[kind][:, None]
                    costs += self._means[slot] * self._effects[table + cells]
                if kind in options:
                    cells = theirs["format"][:, None] * self._width + options[kind]
                    costs += self._means[other] * self._effects[table + cells]
        return _axes(costs)

    def _taken(self, policy: Policy) -> Taken:
        """Return what one policy takes over its run, over what float32 does.

        Seconds are the mean over its phases, bytes at each moment those of the largest phase.
        """
        objective, steps = self._objective, self._objective.task.steps
        base = objective.float32_price
        starts = [0, *(phase.first_step for phase in policy.phases if phase.first_step < steps)]
        seconds, live = np.zeros(self._count + 1), dict[str, Array]()
        for start, end in pairwise([*starts, steps]):
            graph = objective.step_graph(policy.at_step(start))
            where = self._slot_of, self._count, objective.device, objective.stack
            parts = slot_prices(graph, *where)
            # Kernels and launches overlap in the step as a whole, so its own seconds are shared out
            # in proportion to what each group takes by itself.
            kernels, launches = parts.seconds.sum(axis=0)
            step = float(joined_seconds(kernels, launches, objective.device))
            share = (end - start) / steps / base.time.step_seconds
            seconds += share * step / (kernels + launches) * parts.seconds.sum(axis=1)
            shares = parts.live_bytes / base.memory.peak_bytes
            now = dict(zip(parts.moments, shares, strict=True))
            live = {m: max(now[m], live.get(m, now[m]), key=np.sum) for m in now}
        return seconds, live

    def _fit(self, rows: Rows, taken: list[Taken]) -> None:
        # Which moment is the peak depends on the policy, so each moment that was one is fitted, and
        # a policy's peak is the largest of its estimates. One they do not all have cannot be.
        peaks = {max(live, key=lambda moment: live[moment].sum()) for _, live in taken}
        moments = sorted(peaks.intersection(*(live for _, live in taken)))
        parts = np.array(
            [np.column_stack([seconds, *(live[m] for m in moments)]) for seconds, live in taken]
        )
        self._means, self._rest = parts[:, :-1].mean(axis=0), parts[:, -1].mean(axis=0)
        over = parts[:, :-1] / np.where(self._means > 0.0, self._means, 1.0) - 1.0
        features = [self._features(slot, rows) for slot in range(self._count)]
        weights = np.concatenate([np.ones(self._alike), np.full(self._alone * self._count, OWN)])
        counts = np.concatenate([np.full(len(rows), each.shape[1]) for each in features])
        columns = np.concatenate([each.ravel() for each in features])
        starts = np.concatenate([[0], np.cumsum(counts)])
        # A row is one group of one policy: a 1 for each effect it has. An effect of a single group
        # is scaled by OWN, so the penalty on it is 1 / OWN^2 times as large: groups are alike
        # unless the prices insist. LSMR with `damp` minimises |design x - wanted|^2 + damp^2 |x|^2
        # (Fong and Saunders, SIAM J. Sci. Comput. 33(5), 2011), so damp^2 is the penalty.
        design = csr_array((weights[columns], columns, starts), shape=(len(counts), len(weights)))
        wanted = over.swapaxes(0, 1).reshape(len(counts), -1).T
        solved = [lsmr(design, each, damp=RIDGE**0.5)[0] for each in wanted]
        self._effects = weights[:, None] * np.stack(solved, axis=1)

    def _features(self, slot: int, rows: Rows) -> Rows:
        """Return the effects [n, count] that a group has in each of the rows, by their number.

        Effects are numbered in tables: format by option of each kind, format by option of what is
        exchanged with a neighbour, options that no group has alone, and these once more per group.
        """
        own, wide = self._own[slot], self._width
        format = rows[:, own["format"]]
        table = wide * wide
        cells = [PER_LAYER.index(k) * table + format * wide + rows[:, p] for k, p in own.items()]
        for other in self._near[slot]:
            for at, kind in enumerate(EXCHANGED, len(PER_LAYER)):
                if kind in self._own[other]:
                    cells.append(at * table + format * wide + rows[:, self._own[other][kind]])
        first = (len(PER_LAYER) + len(EXCHANGED)) * table
        cells += [first + i * wide + rows[:, place] for i, place in enumerate(self._common)]
        first = self._alike + slot * self._alone
        alone = [*own.values(), *self._common]
        cells += [first + i * wide + rows[:, place] for i, place in enumerate(alone)]
        return np.stack(cells, axis=1)

    @property
    def _alike(self) -> int:
        """How many effects all groups share."""
        tables = (len(PER_LAYER) + len(EXCHANGED)) * self._width**2
        return tables + len(self._common) * self._width

    @property
    def _alone(self) -> int:
        """How many effects a group has by itself."""
        return (len(PER_LAYER) + len(self._common)) * self._width


def _axes(costs: Array) -> Array:
    """Return time and mean bytes [..., 2] of columns of time and of bytes at each moment."""
    return np.stack([costs[..., 0], costs[..., 1:].mean(axis=-1)], axis=-1)


def _drawn(space: Space, rng: np.random.Generator) -> list[Params]:
    """Return PRICED parameters: half drawn freely, half with most groups as the first."""
    choices, first = space.choices(), space.groups[0].name
    sample = []
    for place in range(PRICED):
        drawn = {n: values[int(rng.integers(len(values)))] for n, values in choices.items()}
        for group in space.groups if place % 2 else ():
            if rng.uniform() < SAME:
                names = {f"{kind}.{group.name}": f"{kind}.{first}" for kind in PER_LAYER}
                drawn |= {n: drawn[like] for n, like in names.items() if {n, like} <= drawn.keys()}
        sample.append(drawn)
    return sample
