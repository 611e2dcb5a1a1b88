"""One exact price taken apart: what each slot's kernels take and its buffers hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.devices import Device
from policysearch.cost.memory import lives
from policysearch.cost.price import time_on
from policysearch.cost.stacks import Stack
from policysearch.cost.storage import node_bytes
from policysearch.cost.time import KernelTime
from policysearch.graph import Graph

SlotOf = Callable[[str], "int | None"]
"""The slot of a layer, by its name."""


@dataclass(frozen=True, eq=False)
class Parts:
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


def parts_of(graph: Graph, slot_of: SlotOf, slots: int, device: Device, stack: Stack) -> Parts:
    """Return the exact price of one step of `graph`, slot by slot."""
    homes = _homes(graph, slot_of, slots)
    seconds = np.zeros((slots + 1, 2))
    time = time_on(graph, device, stack)
    per_launch = time.launch_seconds / max(1, sum(kernel.launches for kernel in time.kernels))
    for kernel in time.kernels:
        taken = np.array([kernel.seconds, kernel.launches * per_launch])
        for slot, share in _shares(graph, kernel, homes, slots).items():
            seconds[slot] += share * taken
    moments, live = _live(graph, homes, slots)
    return Parts(seconds, moments, live)


@dataclass(frozen=True)
class Around:
    """What may change the cost of a slot: other slots, and sets of slots that read one value."""

    slots: frozenset[int] = frozenset()
    readers: frozenset[tuple[int, ...]] = frozenset()

    def __or__(self, other: Around) -> Around:
        return Around(self.slots | other.slots, self.readers | other.readers)


def around_in(graph: Graph, slot_of: SlotOf, slots: int) -> tuple[Around, ...]:
    """Return for each slot what may change its cost: who makes what it reads and who reads it."""
    homes, root = _homes(graph, slot_of, slots), _values(graph)
    reading: dict[int, set[int]] = {}
    for node in graph.nodes:
        if node.role != "update" and not node.op.converts:
            for i in (root[node.id], *(root[i] for i in node.inputs)):
                reading.setdefault(i, set()).add(homes[node.id])
    found = [Around()] * slots
    for value, readers in reading.items():
        met = frozenset(readers | {homes[value]}) - {slots}
        for slot in met:
            found[slot] |= Around(met - {slot})
        others = tuple(sorted(met - {homes[value]}))
        if homes[value] < slots and len(others) > 1:
            found[homes[value]] |= Around(readers=frozenset({others}))
    return tuple(found)


def _values(graph: Graph) -> list[int]:
    """Return for each node what it is a cast or view of, by way of others; mostly itself."""
    root = list(range(len(graph.nodes)))
    for node in graph.nodes:
        if node.op.converts or node.op.kind == "move":
            root[node.id] = root[node.inputs[0]]
    return root


def _homes(graph: Graph, slot_of: SlotOf, slots: int) -> list[int]:
    """Return for each node the slot it belongs to, `slots` for none; a cast goes with its value."""
    own = [slots if (slot := slot_of(node.layer)) is None else slot for node in graph.nodes]
    return [own[i] for i in _values(graph)]


def _shares(graph: Graph, kernel: KernelTime, homes: list[int], slots: int) -> dict[int, float]:
    """Return which slots a kernel belongs to: its lead's; of an update, by bytes, those of all."""
    nodes = [graph.nodes[i] for i in kernel.node_ids]
    if kernel.role != "update":
        lead = next((n for n in nodes if n.layer == kernel.layer), nodes[0])
        return {homes[lead.id]: 1.0}
    held: dict[int, float] = {}
    for node in nodes:
        for each in (node, *graph.inputs_of(node)):
            held[homes[each.id]] = held.get(homes[each.id], 0.0) + node_bytes(each)
    of_slots = {slot: count for slot, count in held.items() if slot != slots} or {slots: 1.0}
    total = sum(of_slots.values()) or 1.0
    return {slot: count / total for slot, count in of_slots.items()}


def _live(
    graph: Graph, homes: list[int], slots: int
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    count = len(graph.nodes)
    change = np.zeros((count + 2, slots + 1))
    for life in lives(graph):
        slot = homes[life.owner.id]
        change[life.first, slot] += life.bytes
        change[life.last + 1, slot] -= life.bytes
    live = np.cumsum(change, axis=0)[:count]
    total = live.sum(axis=1)
    names, rows, start = [], [], 0
    met: dict[str, int] = {}
    for node in graph.nodes:
        if node.op.converts or node.op.kind in ("source", "move"):
            continue
        name = f"{node.layer}/{node.op.name}/{node.role}/{node.name}"
        met[name] = met.get(name, 0) + 1
        names.append(f"{name}/{met[name]}")
        rows.append(start + int(np.argmax(total[start : node.id + 1])))
        start = node.id + 1
    return tuple(names), live[rows]
