"""What libraries do in one pass where a step graph has many nodes: gradients of parts, recurrence.

The gradient of a tensor that was cut in parts is those of its parts written side by side (torch's
backward of `chunk`, `split` and `unbind` is `cat` or `stack`), not a sum of tensors padded with
zeros. Libraries of recurrent layers contract a weight's gradient over all time steps at once and
run the elementwise ops of a cell as one kernel (Appleyard et al., 2016, arXiv 1604.01946).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policysearch.cost.memory import storage_of
from policysearch.graph import Graph, Node

Place = tuple[object, ...]
"""What the terms of a sum must have in common to be one pass."""


@dataclass(frozen=True)
class Joined:
    """Nodes by id: `free` ask for nothing, `placed` write the part that they read and no zeros.

    `repeats`: a product or bias gradient that stands for so many of them, one for each time step.
    """

    free: frozenset[int]
    placed: frozenset[int]
    repeats: Mapping[int, int]

    def steps(self, graph: Graph) -> Mapping[str, int]:
        """Return the recurrent layers, whose weights' products are repeated, with their steps."""
        steps: dict[str, int] = {}
        for i, count in self.repeats.items():
            if graph.nodes[i].op.kind == "gemm":
                layer = graph.nodes[i].layer
                steps[layer] = steps.get(layer, 0) + count
        return steps


@dataclass(frozen=True)
class _Sum:
    """A sum that may be one pass: its terms, and the additions between them."""

    place: Place
    terms: tuple[int, ...]
    additions: tuple[int, ...] = ()


def joined(graph: Graph) -> Joined:
    """Return which nodes of a step run in one pass with others."""
    root = storage_of(graph)
    read = [0] * len(graph.nodes)
    for node in graph.nodes:
        for i in node.inputs if node.op.kind != "move" else ():
            read[root[i]] += 1
    weights = {(n.layer, n.shape) for n in graph.nodes if n.op.name == "parameter"}
    sums: dict[int, _Sum] = {}
    for node in graph.nodes:
        place = _place(graph, node, weights)
        if place:
            sums[node.id] = _Sum(place, (node.id,))
        elif node.op.name == "add" and all(read[root[i]] == 1 for i in node.inputs):
            parts = [sums.get(root[i]) for i in node.inputs]
            if whole := _whole(graph, node.id, parts):
                sums[node.id] = whole
                for i in node.inputs:
                    del sums[root[i]]
    return _joined_sums(graph, [found for found in sums.values() if found.additions])


def _joined_sums(graph: Graph, sums: Sequence[_Sum]) -> Joined:
    free: set[int] = set()
    placed: set[int] = set()
    repeats: dict[int, int] = {}
    for found in sums:
        first, *others = found.terms
        free.update(found.additions)
        if graph.nodes[first].op.name == "slice_grad":
            placed.update(found.terms)
        else:
            free.update(others)
            repeats[first] = len(found.terms)
    return Joined(frozenset(free), frozenset(placed), repeats)


def _place(graph: Graph, node: Node, weights: set[tuple[str, tuple[int, ...]]]) -> Place:
    """Return what a term of a sum in one pass has in common with the others, () where it is none.

    Parts of a tensor share its shape and their axis; gradients of a weight, layer and operands.
    """
    if node.op.name == "slice_grad" and node.attributes.get("step", 1) == 1:
        return ("parts", node.shape, node.attributes["axis"])
    if node.role == "fprop" or (node.layer, node.shape) not in weights:
        return ()
    if node.op.kind == "gemm" or node.op.name == "bias_grad":
        return (node.op.name, node.layer, *(x.shape for x in graph.inputs_of(node)))
    return ()


def _whole(graph: Graph, addition: int, parts: Sequence[_Sum | None]) -> _Sum | None:
    """Return the sum of two sums, None where it is no pass of its own."""
    first, second = parts
    if first is None or second is None or first is second or first.place != second.place:
        return None
    if first.place[0] == "parts" and _overlap(graph, first.terms, second.terms):
        return None
    additions = (*first.additions, *second.additions, addition)
    return _Sum(first.place, (*first.terms, *second.terms), additions)


def _overlap(graph: Graph, parts: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether any of the parts of a tensor has elements of any of the others."""
    mine, theirs = ([_range(graph.nodes[i]) for i in ids] for ids in (parts, others))
    return any(a.start < b.stop and b.start < a.stop for a in mine for b in theirs)


def _range(part: Node) -> range:
    """Return the places of a part along the axis that it was cut on."""
    marks = part.attributes
    return range(part.shape[marks["axis"]])[marks["start"] : marks["stop"]]
