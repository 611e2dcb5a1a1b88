"""Step time and memory of very many policies: sums of terms of single slots and their neighbours.

A slot is what is decided as one, a layer or a group of them; its options are the ways it may be
computed. What a slot's kernels take and its buffers hold depends on its own option and on those
of the slots it exchanges values with, so about a hundred exact prices of assignments drawn at
random give, slot by slot and by least squares, the terms of all assignments.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.devices import Device
from policysearch.cost.measured import time_on
from policysearch.cost.memory import lives, node_bytes
from policysearch.cost.roofline import joined_seconds
from policysearch.cost.stacks import Stack
from policysearch.cost.time import KernelTime
from policysearch.graph import Graph
from policysearch.values import InputError

SlotOf = Callable[[str], "int | None"]
"""The slot of a layer, by its name."""


@dataclass(frozen=True, eq=False)
class SlotPrices:
    """`seconds`: kernel and launch seconds, [slots + 1, 2]; the last row is of no slot.

    `live_bytes`: [moments, slots + 1] at each of `moments`, which are nodes that every policy has,
    each with the casts before it.
    """

    seconds: NDArray[np.float64]
    moments: tuple[str, ...]
    live_bytes: NDArray[np.float64]

    @property
    def peak_bytes(self) -> float:
        return float(self.live_bytes.sum(axis=1).max())


def slot_prices(
    graph: Graph, slot_of: SlotOf, slots: int, device: Device, stack: Stack
) -> SlotPrices:
    """Return the exact price of one step of `graph`, slot by slot."""
    homes = _homes(graph, slot_of, slots)
    seconds = np.zeros((slots + 1, 2))
    time = time_on(graph, device, stack)
    per_launch = time.launch_seconds / max(1, sum(kernel.launches for kernel in time.kernels))
    for kernel in time.kernels:
        both = np.array([kernel.seconds, kernel.launches * per_launch])
        for slot, share in _slot_shares(graph, kernel, homes, slots).items():
            seconds[slot] += share * both
    moments, live = _live(graph, homes, slots)
    return SlotPrices(seconds, moments, live)


@dataclass(frozen=True)
class Neighbours:
    """What may change the cost of a slot: other slots, and sets of slots that read one value."""

    slots: frozenset[int] = frozenset()
    readers: frozenset[tuple[int, ...]] = frozenset()

    def __or__(self, other: Neighbours) -> Neighbours:
        return Neighbours(self.slots | other.slots, self.readers | other.readers)


def neighbours_in(graph: Graph, slot_of: SlotOf, slots: int) -> tuple[Neighbours, ...]:
    """Return for each slot what may change its cost: who makes what it reads and who reads it."""
    homes, values = _homes(graph, slot_of, slots), _values(graph)
    reading: dict[int, set[int]] = {}
    for node in graph.nodes:
        if node.role != "update" and not node.op.converts:
            for i in (values[node.id], *(values[i] for i in node.inputs)):
                reading.setdefault(i, set()).add(homes[node.id])
    neighbours = [Neighbours()] * slots
    for value, readers in reading.items():
        around = frozenset(readers | {homes[value]}) - {slots}
        for slot in around:
            neighbours[slot] |= Neighbours(around - {slot})
        others = tuple(sorted(around - {homes[value]}))
        # one cast serves all readers of a format: what it costs the maker is no sum over readers
        if homes[value] < slots and len(others) > 1:
            neighbours[homes[value]] |= Neighbours(readers=frozenset({others}))
    return tuple(neighbours)


def _values(graph: Graph) -> list[int]:
    """Return for each node what it is a cast or view of, by way of others; mostly itself."""
    values = list(range(len(graph.nodes)))
    for node in graph.nodes:
        if node.op.converts or node.op.kind == "move":
            values[node.id] = values[node.inputs[0]]
    return values


def _homes(graph: Graph, slot_of: SlotOf, slots: int) -> list[int]:
    """Return for each node the slot it belongs to, `slots` for none; a cast goes with its value."""
    own = [slots if (slot := slot_of(node.layer)) is None else slot for node in graph.nodes]
    return [own[i] for i in _values(graph)]


def _slot_shares(
    graph: Graph, kernel: KernelTime, homes: list[int], slots: int
) -> dict[int, float]:
    """Return which slots a kernel belongs to: its lead's; of an update, by bytes, those of all."""
    nodes = [graph.nodes[i] for i in kernel.node_ids]
    if kernel.role != "update":
        lead = next((n for n in nodes if n.layer == kernel.layer), nodes[0])
        return {homes[lead.id]: 1.0}
    # one launch updates all parameters: its seconds are shared out by what it moves
    traffic: dict[int, float] = {}
    for node in nodes:
        for tensor in (node, *graph.inputs_of(node)):
            slot = homes[tensor.id]
            traffic[slot] = traffic.get(slot, 0.0) + node_bytes(tensor)
    of_slots = {slot: bytes for slot, bytes in traffic.items() if slot != slots} or {slots: 1.0}
    total = sum(of_slots.values()) or 1.0
    return {slot: bytes / total for slot, bytes in of_slots.items()}


def _live(
    graph: Graph, homes: list[int], slots: int
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Return the moments of a step by name, and the bytes live at each, [moments, slots + 1].

    Casts come and go with the policy, so a moment is a node that every policy has, with the casts
    before it; its bytes are those at the worst of them. Then moments of all policies compare.
    """
    count = len(graph.nodes)
    change = np.zeros((count + 2, slots + 1))
    for life in lives(graph):
        slot = homes[life.owner.id]
        change[life.first, slot] += life.bytes
        change[life.last + 1, slot] -= life.bytes
    live = np.cumsum(change, axis=0)[:count]
    total = live.sum(axis=1)
    names, rows, start = [], [], 0
    repeats: dict[str, int] = {}
    for node in graph.nodes:
        if node.op.converts or node.op.kind in ("source", "move"):
            continue
        name = f"{node.layer}/{node.op.name}/{node.role}/{node.name}"
        repeats[name] = repeats.get(name, 0) + 1
        names.append(f"{name}/{repeats[name]}")
        rows.append(start + int(np.argmax(total[start : node.id + 1])))
        start = node.id + 1
    return tuple(names), live[rows]


Choices = tuple[int, ...]
"""The option of every slot, by its place."""

Drawn = NDArray[np.intp]
"""Assignments, [n, slots]."""

Term = tuple[int, tuple[int, ...], NDArray[np.float64]]
"""A slot, others with as many options each, and a table [options, options, columns].

Of its row for the option of the first, what each option adds that one or more of the others have.
"""

ROWS = 4096
"""Assignments summed at once, so that the sums stay in the cache."""

CHECKED = 16
"""Random assignments priced exactly beside those that the table is fitted to."""

NEAR_PEAK = 0.85
"""A moment is kept where some price of the table had this share of its peak then."""


@dataclass(frozen=True, eq=False)
class PriceTable:
    """Modeled step time and peak memory of any assignment of options to slots, by lookup.

    `options` is how many each slot has. `terms` holds (slot, slot, [options, options, columns])
    with columns kernel seconds, launch seconds, then the bytes live at each moment kept, and
    `constant` what no slot decides. `time_error` and `memory_error` are the largest relative
    errors over CHECKED random assignments that the terms were not fitted to; `prices` is how many
    exact prices it took.
    """

    device: Device
    options: Choices
    constant: NDArray[np.float64]
    terms: tuple[Term, ...]
    time_error: float
    memory_error: float
    prices: int

    def step_seconds(self, choices: Drawn) -> NDArray[np.float64]:
        """Return the modeled seconds of a step, [n], of assignments [n, slots]."""
        return self.priced(choices)[0]

    def priced(self, choices: Drawn) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the modeled step seconds and peak bytes, [n] each, of assignments [n, slots].

        Raises InputError where these are no assignments of this table.
        """
        rows = np.asarray(choices)
        least = rows.shape[1:] == (len(self.options),) and np.min(rows, initial=0) >= 0
        if not (least and (rows < self.options).all()):
            raise InputError(
                f"choices: shape {rows.shape}; expected [n, {len(self.options)}] with options "
                "from 0 below those of each slot"
            )
        parts = [self.summed(rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)]
        sums = np.concatenate(parts) if parts else np.empty((0, len(self.constant)))
        return joined_seconds(sums[:, 0], sums[:, 1], self.device), sums[:, 2:].max(axis=1)

    def summed(self, choices: Drawn) -> NDArray[np.float64]:
        """Return the sums of all terms of assignments [n, slots]: [n, columns]."""
        sums = np.tile(self.constant, (len(choices), 1))
        for slot, others, table in self.terms:
            if len(others) == 1:
                flat = table.reshape(-1, table.shape[-1])
                sums += flat[choices[:, slot] * table.shape[1] + choices[:, others[0]]]
                continue
            for option in range(table.shape[1]):
                reads = (choices[:, others] == option).any(axis=1)
                sums[reads] += table[choices[reads, slot], option]
        return sums


def price_table(
    graph_of: Callable[[Choices], Graph],
    options: Sequence[int],
    slot_of: SlotOf,
    device: Device,
    stack: Stack,
    rng: np.random.Generator,
) -> PriceTable:
    """Return the table of all assignments of `options[i]` options to slot i.

    `graph_of` gives the step under an assignment, `slot_of` the slot of a layer or None.
    """
    slots = len(options)
    widest = [tuple(min(option, n - 1) for n in options) for option in range(max(options))]
    graphs = [graph_of(choices) for choices in widest]
    exact = [slot_prices(graph, slot_of, slots, device, stack) for graph in graphs]
    rows = (neighbours_in(graph, slot_of, slots) for graph in graphs)
    around = [functools.reduce(operator.or_, column) for column in zip(*rows, strict=True)]
    fitted = _design(options, [neighbours.slots for neighbours in around], rng)
    checked = np.stack([rng.integers(n, size=CHECKED) for n in options], axis=1)
    drawn = np.concatenate([fitted, checked])
    exact += [slot_prices(graph_of(tuple(row)), slot_of, slots, device, stack) for row in drawn]
    choices = np.concatenate([widest, drawn])
    moments = _moments(exact)
    values = np.stack([_columns(parts, moments) for parts in exact])
    terms = _terms(choices[:-CHECKED], values[:-CHECKED], options, around)
    constant = values[:-CHECKED, slots].mean(axis=0)
    table = PriceTable(device, tuple(options), constant, terms, math.nan, math.nan, len(exact))
    return _table_with_errors(table, choices[-CHECKED:], exact[-CHECKED:])


def _design(
    options: Sequence[int], near: Sequence[frozenset[int]], rng: np.random.Generator
) -> Drawn:
    """Return assignments that tell the terms of every slot apart.

    Around random assignments in which each slot has each of its options once, all slots of a
    colour get each other option: of a slot and its neighbours only one has another option then, so
    a difference of two prices is the change of one term. How many that takes depends on how slots
    hang together, and not on how many there are (as the groups of Curtis, Powell and Reid, 1974,
    of the columns of a sparse Jacobian).
    """
    colours, counts = np.array(_colours(near)), np.array(options)
    levels = np.arange(counts.max())
    first = np.array([rng.integers(count) for count in options])
    around = first + levels[:, None]
    steps = [levels[1:, None] * (colours == colour) for colour in range(colours.max() + 1)]
    varied = np.concatenate([np.zeros_like(first)[None], *steps])
    return np.unique((around[:, None] + varied).reshape(-1, len(options)) % counts, axis=0)


def _colours(near: Sequence[frozenset[int]]) -> list[int]:
    """Return a colour for each slot, another one for each slot at most two steps away."""
    colours: list[int] = []
    for slot, others in enumerate(near):
        around = others.union(*(near[other] for other in others)) - {slot}
        used = {colours[other] for other in around if other < slot}
        colours.append(next(c for c in itertools.count() if c not in used))
    return colours


def _moments(exact: Sequence[SlotPrices]) -> tuple[str, ...]:
    """Return the moments at which one of these prices comes near its peak."""
    near: set[str] = set()
    for parts in exact:
        live = parts.live_bytes.sum(axis=1)
        near |= {parts.moments[i] for i in np.flatnonzero(live >= NEAR_PEAK * live.max())}
    return tuple(sorted(near.intersection(*(parts.moments for parts in exact))))


def _columns(parts: SlotPrices, moments: Sequence[str]) -> NDArray[np.float64]:
    """Return [slots + 1, columns] of one price, what belongs to no slot last."""
    place = {name: i for i, name in enumerate(parts.moments)}
    live = parts.live_bytes[[place[name] for name in moments]]
    return np.concatenate([parts.seconds, live.T], axis=1)


def _terms(
    choices: Drawn,
    values: NDArray[np.float64],
    options: Sequence[int],
    around: Sequence[Neighbours],
) -> tuple[Term, ...]:
    """Return the terms of every slot, least squares over what stands around it.

    One that stands alone gets a term with itself. Terms of two slots are one in either order.
    """
    terms: dict[tuple[int, tuple[int, ...]], NDArray[np.float64]] = {}
    for slot, near in enumerate(around):
        sets: list[tuple[int, ...]] = [(other,) for other in sorted(near.slots)] or [(slot,)]
        sets += [readers for readers in sorted(near.readers) if _alike(readers, options)]
        shapes = [(options[slot], options[others[0]]) for others in sets]
        blocks = [_indicators(choices, slot, others, options) for others in sets]
        # the least of all solutions: only sums of the terms of several sets are determined
        solution = np.linalg.lstsq(np.concatenate(blocks, axis=1), values[:, slot], rcond=1e-9)[0]
        ends = np.cumsum([block.shape[1] for block in blocks])[:-1]
        for others, shape, table in zip(sets, shapes, np.split(solution, ends), strict=True):
            key, table = (slot, others), table.reshape(*shape, -1)
            if len(others) == 1 and others[0] < slot:
                key, table = (others[0], (slot,)), table.swapaxes(0, 1)
            terms[key] = terms[key] + table if key in terms else table
    return tuple((*key, np.ascontiguousarray(table)) for key, table in sorted(terms.items()))


def _alike(slots: Sequence[int], options: Sequence[int]) -> bool:
    return len({options[slot] for slot in slots}) == 1


def _indicators(
    choices: Drawn, slot: int, others: Sequence[int], options: Sequence[int]
) -> NDArray[np.float64]:
    """Return [n, options * options]: 1 where the slot has this option and one of others that."""
    own = np.eye(options[slot])[choices[:, slot]]
    theirs = np.eye(options[others[0]])[choices[:, others]].max(axis=1)
    both: NDArray[np.float64] = own[:, :, None] * theirs[:, None, :]
    return both.reshape(len(choices), -1)


def _table_with_errors(
    table: PriceTable, choices: Drawn, exact: Sequence[SlotPrices]
) -> PriceTable:
    seconds, peaks = table.priced(choices)
    sums = np.stack([parts.seconds.sum(axis=0) for parts in exact])
    true_seconds = joined_seconds(sums[:, 0], sums[:, 1], table.device)
    true_peaks = [parts.peak_bytes for parts in exact]
    return dataclasses.replace(
        table,
        time_error=float(np.max(np.abs(seconds / true_seconds - 1))),
        memory_error=float(np.max(np.abs(peaks / true_peaks - 1))),
    )
