"""Modeled memory of one training step: liveness over its nodes in their formats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from policysearch.cost.devices import Device
from policysearch.cost.reserved import GIB, GROWTH, visible_bytes, wanted_bytes
from policysearch.cost.storage import node_bytes, roots
from policysearch.graph import Graph, Node, size

Kind = Literal["parameter", "master", "optimizer", "gradient", "weight_copy", "activation", "mask"]

Held = tuple[Kind, int, int, float]
"""Something that is held: its kind, the first and the last node that it is there at, its bytes."""


@dataclass(frozen=True)
class StepMemory:
    """Modeled memory of one step in bytes.

    `peak_bytes` is the most that is live at once, and the parts are what is live then: parameters
    (running statistics included) and those that are masters, which products read as narrow copies;
    optimizer state; gradients of parameters (their float32 casts included); narrow copies of
    parameters; masks of dropout, a byte each; and all else. `peak_node` is the id of the node that
    runs at that moment. A process reserves between the two `reserved` bounds, its context included
    (`cost/reserved.py`).
    """

    peak_bytes: int
    peak_node: int
    parameter_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    weight_copy_bytes: int
    activation_bytes: int
    master_bytes: int = 0
    mask_bytes: int = 0

    @property
    def reserved_low_bytes(self) -> int:
        return round(wanted_bytes(self.peak_bytes, GROWTH.low))

    @property
    def reserved_high_bytes(self) -> int:
        return round(wanted_bytes(self.peak_bytes, GROWTH.high))

    @property
    def parts(self) -> tuple[tuple[Kind, int], ...]:
        """(kind, bytes) of what is live at the peak."""
        return tuple((kind, getattr(self, f"{kind}_bytes")) for kind in get_args(Kind))

    def fits(self, device: Device) -> bool:
        """Whether the upper bound of the reserved memory is within the smallest size sold."""
        return self.reserved_high_bytes <= visible_bytes(device.memory_bytes / GIB)


@dataclass(frozen=True)
class Life:
    """A buffer: the node that makes it and the first and last node at which it is held."""

    owner: Node
    first: int
    last: int
    kind: Kind

    @property
    def bytes(self) -> int:
        return size(self.owner.shape) if self.kind == "mask" else node_bytes(self.owner)


def lives(graph: Graph) -> tuple[Life, ...]:
    """Return every buffer of the step.

    Sources are held throughout: parameters, state and the batch. Views share the buffer of what
    they show. A new parameter or state takes the place of the old one where nothing reads the
    old one later, and other updates (unscaling, clipping) work in place where they may. A node
    marked `fused` has no buffer. Gradients last until their last reader, named outputs or not.
    """
    view = roots(graph)
    read = _last_reads(graph, view)
    kept = {i for _, i in graph.outputs if graph.nodes[i].role != "update"}
    kept |= {new for _, new in graph.updates}
    last = [len(graph.nodes) if i in kept else read[view[i]] for i in range(len(graph.nodes))]
    buffer = _buffers(graph, view, last)
    ends: dict[int, int] = {}
    for node in graph.nodes:
        if not node.fused:
            end = len(graph.nodes) if node.op.kind == "source" else last[node.id]
            ends[buffer[node.id]] = max(ends.get(buffer[node.id], 0), end)
    kinds = _kinds(graph)
    return tuple(
        Life(owner, 0 if owner.op.kind == "source" else i, end, kinds[i])
        for i, end in ends.items()
        for owner in (graph.nodes[i],)
    )


def step_memory(graph: Graph) -> StepMemory:
    """Return the modeled memory of one step of `graph`."""
    rows = lives(graph)
    change = [0] * (len(graph.nodes) + 2)
    for life in rows:
        change[life.first] += life.bytes
        change[life.last + 1] -= life.bytes
    peak, peak_node, live = 0, 0, 0
    for i in range(len(graph.nodes)):
        live += change[i]
        if live > peak:
            peak, peak_node = live, i
    parts = dict.fromkeys(get_args(Kind), 0)
    for life in rows:
        if life.first <= peak_node <= life.last:
            parts[life.kind] += life.bytes
    return StepMemory(peak, peak_node, **{f"{kind}_bytes": held for kind, held in parts.items()})


def live_by_kind(graph: Graph) -> tuple[tuple[str, Mapping[Kind, int]], ...]:
    """Return for each node that is no source where it runs and the bytes live then, by kind."""
    held = ((life.kind, life.first, life.last, life.bytes) for life in lives(graph))
    return labelled(graph, live_along(graph, held))


def live_along(graph: Graph, held: Iterable[Held]) -> list[dict[Kind, float]]:
    """Return the bytes of what is held that live as each node runs, by kind."""
    change: list[dict[Kind, float]] = [{} for _ in range(len(graph.nodes) + 2)]
    for kind, first, last, bytes in held:
        for i, more in ((first, bytes), (last + 1, -bytes)):
            change[i][kind] = change[i].get(kind, 0) + more
    live: dict[Kind, float] = {}
    found = []
    for node in graph.nodes:
        live = {kind: live.get(kind, 0) + change[node.id].get(kind, 0) for kind in get_args(Kind)}
        found.append(live)
    return found


def labelled(
    graph: Graph, live: Sequence[Mapping[Kind, float]]
) -> tuple[tuple[str, Mapping[Kind, int]], ...]:
    """Return, without the sources, where each node runs and its whole bytes of `live`, by kind."""
    return tuple(
        (
            f"{node.layer or node.op.name} {node.role}",
            {kind: round(bytes) for kind, bytes in live[node.id].items()},
        )
        for node in graph.nodes
        if node.op.kind != "source"
    )


def _last_reads(graph: Graph, view: list[int]) -> list[int]:
    """Return, for each node with memory, the last node that reads it or a view of it."""
    read = list(range(len(graph.nodes)))
    for node in graph.nodes:
        for i in (node.id, *node.inputs):
            read[view[i]] = max(read[view[i]], node.id)
    return read


def _buffers(graph: Graph, view: list[int], last: list[int]) -> list[int]:
    """Return, for each node, the node whose buffer holds its value."""
    buffer = list(view)
    replaced = {new: old for old, new in graph.updates}
    for node in graph.nodes:
        if view[node.id] != node.id:
            buffer[node.id] = buffer[view[node.id]]
        elif node.id in replaced:
            if last[replaced[node.id]] <= node.id:
                buffer[node.id] = replaced[node.id]
        elif node.role == "update":
            buffer[node.id] = _overwritten(graph, node, buffer, last)
    return buffer


def _overwritten(graph: Graph, node: Node, buffer: list[int], last: list[int]) -> int:
    """Return the buffer an update may write into: an input it is the last to read, or its own."""
    for i in (node.inputs[position] for position in node.op.in_place):
        owner = graph.nodes[buffer[i]]
        fits = owner.op.kind != "source" and node_bytes(owner) == node_bytes(node)
        if fits and last[i] == node.id:
            return owner.id
    return node.id


def _kinds(graph: Graph) -> list[Kind]:
    """Return the kind of each node's buffer."""
    kinds = [_kind(graph, node) for node in graph.nodes]
    for node in graph.nodes:
        if node.op.name == "dropout" and graph.nodes[node.inputs[1]].op.kind == "source":
            kinds[node.inputs[1]] = "mask"
        if kinds[node.id] == "weight_copy":
            origin = graph.nodes[node.inputs[0]]
            narrower = node_bytes(node) < node_bytes(origin)
            if origin.op.name == "parameter" and narrower:
                kinds[origin.id] = "master"
    return kinds


def _kind(graph: Graph, node: Node) -> Kind:
    if node.op.name in ("parameter", "buffer"):
        return "parameter"
    if node.op.name == "state":
        return "optimizer"
    if node.role in ("wgrad", "update"):
        return "gradient"
    if node.op.converts:
        origin = node
        while origin.op.converts:
            origin = graph.nodes[origin.inputs[0]]
        if origin.op.name == "parameter":
            return "weight_copy"
    return "activation"
