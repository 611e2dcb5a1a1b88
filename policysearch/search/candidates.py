"""The policies of a space that can be asked for, with their modeled costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.search.hypervolume import Array
from policysearch.search.price_estimate import PriceEstimate, Rows
from policysearch.search.price_table import Lookup, lookup_of
from policysearch.space.decided.base import Params
from policysearch.space.encoding import PER_LAYER, Encoding
from policysearch.space.options import Row
from policysearch.space.section import MODIFYING as SCALES
from policysearch.space.section import SHARED, is_named
from policysearch.space.space import Space
from policysearch.values import InputError

THETA_SD = 1.0
"""How far sensitivities are moved at most, in nats, to draw policies that a sure fit would not."""


class Draws:
    """Draws what the groups of a space decide, for given values of all that they share.

    By estimated prices and the sensitivities that are thought likely, each group takes the best of
    all it can decide; then once more, with what it exchanges with its neighbours as they are: one
    sweep of iterated conditional modes (Besag, J. R. Statist. Soc. B 48(3), 1986). Weights of gap,
    time and memory are drawn anew for each policy, so that draws lie all along the front (as in
    ParEGO: Knowles, IEEE Trans. Evol. Comput. 10(1), 2006).
    """

    def __init__(self, space: Space, encoding: Encoding, estimate: PriceEstimate) -> None:
        self._encoding, self._estimate = encoding, estimate
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
        counted = {pair: i for i, pair in enumerate(encoding.decisions.counted())}
        self._thetas = [
            np.array([counted.get((place, option), -1) for option in range(len(options))])
            for place, options in enumerate(encoding.decisions.places)
        ]
        self._place = {name: i for i, name in enumerate(encoding.places)}
        self._tables: dict[Any, dict[str, NDArray[np.int64]]] = {}

    def policies(
        self, common: Sequence[Params], theta: Array, rng: np.random.Generator
    ) -> list[Params]:
        """Return a policy for each of `common`, the values of what is decided for all groups."""
        count = len(common)
        share = rng.uniform(size=count)
        # A weight at which decisions as sensitive as a drawn one are torn.
        torn = theta[rng.integers(len(theta), size=count)] if len(theta) else np.zeros(count)
        weight = np.exp(rng.standard_normal(count) - torn) / max(1, sum(map(len, self._decided)))
        # Sensitivities are drawn too: options that a sure fit rules out stay possible.
        moved = np.exp(theta + THETA_SD * rng.standard_normal((count, len(theta))))
        gaps = weight[:, None] * np.column_stack([moved, np.zeros(count)])
        prices = np.column_stack([share, 1.0 - share])
        options = [self._options(slot, common) for slot in range(len(self._groups))]
        costs = [self._alone(slot, each, gaps, prices) for slot, each in enumerate(options)]
        chosen = [each.argmin(axis=1) for each in costs]
        every = np.arange(count)
        for slot, own in enumerate(options):
            neighbours = {
                other: {kind: each[every, chosen[other]] for kind, each in options[other].items()}
                for other in self._estimate.near(slot)
            }
            costs[slot] += np.einsum(
                "nck,nk->nc", self._estimate.between(slot, own, neighbours), prices
            )
            chosen[slot] = costs[slot].argmin(axis=1)
        return [
            params | self._params([int(each[i]) for each in chosen])
            for i, params in enumerate(common)
        ]

    def _options(self, slot: int, common: Sequence[Params]) -> dict[str, Rows]:
        """Return by kind the option [n, combinations] of all that a group can decide."""
        own, group = self._decided[slot], self._groups[slot]
        tables = []
        for params in common:
            key = own, tuple(sorted(params.items())), not own and group
            if key not in self._tables:
                each = [
                    self._encoding.options(
                        group, params | {f"{kind}.{group}": value for kind, value in one.items()}
                    )
                    for one in self._combined[own]
                ]
                self._tables[key] = {kind: np.array([o[kind] for o in each]) for kind in each[0]}
            tables.append(self._tables[key])
        return {kind: np.stack([table[kind] for table in tables]) for kind in tables[0]}

    def _alone(self, slot: int, options: Mapping[str, Rows], gaps: Array, prices: Array) -> Array:
        """Return the weighted gap, time and memory [n, combinations] of a group by itself."""
        costs: Array = np.einsum("nck,nk->nc", self._estimate.within(slot, options), prices)
        every = np.arange(len(prices))[:, None]
        for kind, each in options.items():
            place = self._place[f"{kind}.{self._groups[slot]}"]
            costs += gaps[every, self._thetas[place][each]]
        return costs

    def _params(self, chosen: Sequence[int]) -> Params:
        return {
            f"{kind}.{group}": value
            for group, own, one in zip(self._groups, self._decided, chosen, strict=True)
            for kind, value in self._combined[own][one].items()
        }


MOST_LISTED = 1024
"""Spaces with more policies, loss scales apart, are not listed but drawn from."""

DRAWN, ALONG_CHAIN = 64, 256
"""Policies drawn per proposal: best sums of price and gap for weights drawn at random. More of them
where a table has their prices."""

KEPT_WIDE = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""So many groups keep the wider of two formats."""

NEIGHBOURS = 192
"""At most so many policies per proposal that differ from a member of the front in one decision."""

MOST_SINGLE = 64
"""Where more is decided, prices are estimates: those of each decision would take too long."""

UNPRICED = 10.0
"""Time and memory added by a decision without a price, over float32's: never drawn by choice."""

Costs = Callable[[Params], tuple[float, float] | None]
"""(time, memory) of the policy of these parameters, over float32's; None where it has no price.

A price table can serve it: nothing here asks how a price is made.
"""


def price_of(objective: Objective, policy: Policy) -> tuple[float, float] | None:
    """Return (time, memory) of a policy over float32's; None where it has no price."""
    try:
        modeled = objective.price(policy)
    except InputError:
        return None
    return 1.0 / modeled.speedup, modeled.memory_ratio


class SpacePrices:
    """What prices many policies of `space` at once, each made when it is asked for."""

    def __init__(self, objective: Objective, space: Space, seed: int) -> None:
        self._objective, self._space, self._seed = objective, space, seed

    def table(self) -> Lookup | None:
        """Return the price tables of the space; None where they are too many or too far off."""
        return lookup_of(self._objective, self._space, self._seed)

    def estimate(self, encoding: Encoding) -> PriceEstimate | None:
        """Return estimates of all prices; None for a step that is spread over devices."""
        if self._objective.parallel.devices > 1:
            return None
        return PriceEstimate(self._objective, self._space, encoding, self._seed)


class SpacePool:
    """Policies of `space`: all of them, or drawn ones and the neighbours of the front so far.

    Loss scales other than the first are proposed for members of the front alone. A `lookup` prices
    the candidates of a space that is drawn from.
    """

    def __init__(
        self,
        space: Space,
        encoding: Encoding,
        costs: Costs,
        seed: int,
        prices: SpacePrices | None = None,
    ) -> None:
        self._encoding, self._price, self._seed = encoding, costs, seed
        self._choices = space.choices()
        self._plain = {n: v for n, v in self._choices.items() if n not in SCALES}
        self._usual = {name: self._choices[name][0] for name in SCALES if name in self._choices}
        self._params: dict[Row, Params] = {}
        self._costs: dict[Row, tuple[float, float] | None] = {}
        self._neighbour_rows: dict[tuple[Row, str, object], Row] = {}
        self._singles: dict[object, dict[str, tuple[Array, NDArray[np.int64]]]] = {}
        self._listed: list[Row] | None = None
        count = int(np.prod([float(len(values)) for values in self._plain.values()]))
        if count <= MOST_LISTED:
            every = product(*self._plain.values())
            names = list(self._plain)
            rows = [self.add(dict(zip(names, each, strict=True)) | self._usual) for each in every]
            self._listed = list(dict.fromkeys(rows))
        tabled = prices if self._listed is None else None
        self._lookup = tabled.table() if tabled else None
        self._places: dict[int, NDArray[np.int64]] = {}
        large = len(self._plain) > MOST_SINGLE and self._lookup is None
        self._estimate = prices.estimate(encoding) if prices and large else None
        self._draws = Draws(space, encoding, self._estimate) if self._estimate else None

    def add(self, params: Params) -> Row:
        """Return the row of `params`, which `params_of` then knows; the first of equal ones."""
        row = self._encoding.row(params)
        self._params.setdefault(row, params)
        return row

    def params_of(self, row: Row) -> Params:
        """Return parameters that make the policy of a row that was added or proposed."""
        return self._params[row]

    def costs(self, row: Row) -> tuple[float, float] | None:
        """Return (time, memory) of a row that was added; None where it has no price."""
        if row not in self._costs:
            # The value of a loss scale is a constant of the step: it changes no kernel.
            usual = {n: v for n, v in self._usual.items() if n != "loss_scale"}
            plain = self._encoding.row(self._params[row] | usual)
            self._params.setdefault(plain, self._params[row] | usual)
            if plain not in self._costs:
                self._costs[plain] = self._price(self._params[plain])
            self._costs[row] = self._costs[plain]
        return self._costs[row]

    def propose(self, members: Sequence[Row], theta: Array) -> tuple[NDArray[np.int64], Array]:
        """Return candidates and their costs; see `searcher.Pool`."""
        rng = np.random.default_rng([self._seed, len(members)])
        rows = dict.fromkeys(self._listed or self._drawn(theta, rng))
        near = self._near(members)
        if len(near) > NEIGHBOURS:
            near = [near[i] for i in np.sort(rng.permutation(len(near))[:NEIGHBOURS])]
        parents = {self._neighbour_row(*each): each[0] for each in near}
        if self._estimate is not None:
            return self._estimated_candidates(self._estimate, rows, parents)
        rows |= dict.fromkeys(parents)
        width = len(self._encoding.decisions.places) + len(self._encoding.decisions.modifiers)
        if self._lookup is not None:
            every = np.array(list(rows), dtype=np.int64).reshape(len(rows), width)
            return every, self._lookup.costs([self._params[row] for row in rows])
        priced = [(row, costs) for row in rows if (costs := self.costs(row)) is not None]
        known = np.array([row for row, _ in priced], dtype=np.int64).reshape(len(priced), width)
        return known, np.array([costs for _, costs in priced], dtype=float).reshape(len(priced), 2)

    def exact(self, rows: NDArray[np.int64]) -> Array | None:
        """Return the costs of proposed rows where those proposed are rough, else None."""
        if self._estimate is None and self._lookup is None:
            return None
        priced = (self.costs(row) for row in map(tuple, rows.tolist()))
        return np.array([costs or (np.inf, np.inf) for costs in priced])

    def _estimated_candidates(
        self, estimate: PriceEstimate, drawn: Iterable[Row], parents: Mapping[Row, Row]
    ) -> tuple[NDArray[np.int64], Array]:
        """Return candidates with estimated costs; a neighbour's differ from its exact parent's."""
        rows = np.array([*dict.fromkeys([*drawn, *parents])], dtype=np.int64)
        places = {row: i for i, row in enumerate(map(tuple, rows.tolist()))}
        costs = estimate.costs(rows)
        before = list(dict.fromkeys(parents.values()))
        if before:
            guessed = estimate.costs(np.array(before, dtype=np.int64))
            pairs = zip(before, guessed.tolist(), strict=True)
            known = np.array([self.costs(row) or guess for row, guess in pairs])
            off = dict(zip(before, known - guessed, strict=True))
            for row, parent in parents.items():
                costs[places[row]] += off[parent]
        return rows, costs

    def _neighbour_row(self, row: Row, name: str, value: object) -> Row:
        """Return the row with one decision changed; fronts mostly stay, and so do neighbours."""
        key = row, name, value
        if key not in self._neighbour_rows:
            self._neighbour_rows[key] = self.add(self._params[row] | {name: value})
        return self._neighbour_rows[key]

    def _near(self, members: Sequence[Row]) -> list[tuple[Row, str, object]]:
        """Return (member, decision, other value); of listed spaces for their loss scales alone."""
        names = [n for n in self._choices if self._listed is None or n in SCALES]
        return [
            (row, name, value)
            for row in members
            if row in self._params
            for name in names
            for value in self._choices[name]
            if value != self._params[row].get(name)
        ]

    def _drawn(self, theta: Array, rng: np.random.Generator) -> list[Row]:
        """Return the best policies for drawn weights of gap, time and memory.

        With costs taken as sums over the decisions, each decision has its best option by itself;
        by a price table, formats are the best for the chain of the groups.
        """
        if self._lookup is not None:
            return self._along_chain(self._lookup, theta, rng)
        if self._draws is not None:
            shared = [self._apart(rng) for _ in range(DRAWN)]
            return [self.add(params) for params in self._draws.policies(shared, theta, rng)]
        rows = []
        for _ in range(DRAWN):
            common = self._common(rng)
            single = self._single(common)
            # A weight at which decisions as sensitive as a drawn one are torn.
            torn = theta[rng.integers(len(theta))] if len(theta) else 0.0
            weight = np.exp(rng.standard_normal() - torn) / max(1, len(single))
            moved = np.append(np.exp(theta + THETA_SD * rng.standard_normal(len(theta))), 0.0)
            share = rng.uniform()
            params = dict(common)
            for name, (costs, decisions) in single.items():
                scores = weight * moved[decisions] + costs @ [share, 1.0 - share]
                params[name] = self._plain[name][int(scores.argmin())]
            rows.append(self.add(params))
        return rows

    def _along_chain(self, lookup: Lookup, theta: Array, rng: np.random.Generator) -> list[Row]:
        count = ALONG_CHAIN
        shares, drawn = rng.uniform(size=count), rng.integers(len(lookup.ways), size=count)
        torn = theta[rng.integers(len(theta), size=count)] if len(theta) else np.zeros(count)
        size = np.exp(rng.standard_normal(count) - torn) / len(lookup.names)
        # Of many layers each moved by a factor none stays the best: the first draws move the least.
        far = np.linspace(0.0, THETA_SD, count)[:, None]
        moved = np.exp(theta + far * rng.standard_normal((count, len(theta))))
        gaps = size[:, None] * np.column_stack([moved, np.zeros(count)])
        rows: list[Row] = []
        for way in np.unique(drawn).tolist():
            mine = drawn == way
            if way not in self._places:
                self._places[way] = self._thetas(lookup, lookup.ways[way])
            places = self._places[way]
            weights = np.column_stack([shares, 1.0 - shares])[mine]
            chosen = lookup.cheapest(way, weights, gaps[mine][:, places])
            rows += [self.add(params | self._usual) for params in chosen]
            rows += self._ranked_rows(lookup, way, np.append(np.exp(theta), 0.0)[places])
        return rows

    def _ranked_rows(self, lookup: Lookup, way: int, gaps: Array) -> list[Row]:
        """Return policies of two formats: the wider one in the groups that gain most by it.

        `gaps` [groups, formats] are what each is thought to cost. A chain sees casts to the next
        group alone, and prices of a table are a little off. What is fast has the narrowest format
        nearly everywhere, so that few wide groups are tried in fine steps and many in coarse ones.
        """
        rows = []
        for wide, narrow in permutations(range(gaps.shape[1]), 2):
            order = np.argsort(gaps[:, wide] - gaps[:, narrow], kind="stable")
            for count in (count for count in KEPT_WIDE if count < len(order)):
                kept = set(order[:count].tolist())
                formats = {
                    name: self._plain[name][wide if group in kept else narrow]
                    for group, name in enumerate(lookup.names)
                }
                rows.append(self.add(formats | lookup.ways[way] | self._usual))
        return rows

    def _thetas(self, lookup: Lookup, common: Params) -> NDArray[np.int64]:
        """Return by group and format the place in theta [groups, formats], the last for none."""
        counted = {pair: i for i, pair in enumerate(self._encoding.decisions.counted())}
        first = {name: values[0] for name, values in self._choices.items()} | common
        places = []
        for name in lookup.names:
            every = np.array(
                [self._encoding.row(first | {name: v}) for v in self._choices[name]],
                dtype=np.int64,
            )
            place = int(np.ptp(every, axis=0).argmax())
            places.append([counted.get((place, option), -1) for option in every[:, place].tolist()])
        return np.array(places)

    def _single(self, common: Params) -> dict[str, tuple[Array, NDArray[np.int64]]]:
        """Return by decision what each value adds to the costs [values, 2], and its theta.

        All other decisions are their first; a value that costs no gap has the theta after the last.
        """
        key = tuple(sorted(common.items()))
        if key not in self._singles:
            counted = {pair: i for i, pair in enumerate(self._encoding.decisions.counted())}
            names = [name for name in self._plain if name not in common]
            self._singles[key] = {
                name: (
                    np.array(
                        [self._added_costs(common, name, value) for value in self._plain[name]]
                    ),
                    np.array(
                        [
                            counted.get((place, self._full_row(common, name, value)[place]), -1)
                            for value in self._plain[name]
                        ]
                    ),
                )
                for place, name in enumerate(names)
            }
        return self._singles[key]

    def _full_row(self, common: Params, name: str, value: object) -> Row:
        first = {name: values[0] for name, values in self._choices.items()}
        return self.add(first | common | {name: value})

    def _added_costs(self, common: Params, name: str, value: object) -> tuple[float, float]:
        """Return what one decision adds to time and memory; much where it has no price."""
        before = self.costs(self._full_row(common, name, self._plain[name][0]))
        after = self.costs(self._full_row(common, name, value))
        if before is None or after is None:
            return UNPRICED, UNPRICED
        return after[0] - before[0], after[1] - before[1]

    def _apart(self, rng: np.random.Generator) -> Params:
        """Return drawn values of all that is not decided group by group."""
        names = [name for name in self._plain if not is_named(name, PER_LAYER)]
        drawn = {n: self._plain[n][int(rng.integers(len(self._plain[n])))] for n in names}
        return drawn | self._usual

    def _common(self, rng: np.random.Generator) -> Params:
        """Return drawn values of the decisions that all groups share, and the usual loss scale."""
        names = [name for name in self._plain if is_named(name, SHARED)]
        drawn = {n: self._plain[n][int(rng.integers(len(self._plain[n])))] for n in names}
        return drawn | self._usual
