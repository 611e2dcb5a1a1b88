"""Where a pattern is found in a graph, in a stated order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from policysearch.graph import Graph, Node
from policysearch.rewrite.patterns import Edge, Pattern, Wanted, block_of
from policysearch.values import one_of

NO_TYPES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Match:
    """One place where a pattern fits: the nodes in the pattern's order, and their names."""

    nodes: tuple[Node, ...]
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> Node:
        return self.nodes[self.names.index(one_of("match", name, self.names))]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(node.id for node in self.nodes)


def matches(
    graph: Graph, pattern: Pattern, layer_types: Mapping[str, str] = NO_TYPES
) -> tuple[Match, ...]:
    """Return every place where the pattern fits, overlapping ones too.

    They are ordered by the ids of their nodes, that of the pattern's first node first.
    `layer_types` gives the type of each layer by its name, as in `Model.layer_types`.
    """
    search = Search(Surroundings(graph, layer_types), pattern)
    return tuple(match for node in graph.nodes for match in search.at(node))


def disjoint(candidates: Iterable[Match]) -> tuple[Match, ...]:
    """Return the matches without those that share a node with one before them that is kept."""
    taken: set[int] = set()
    chosen = []
    for match in candidates:
        if taken.isdisjoint(match.ids):
            taken.update(match.ids)
            chosen.append(match)
    return tuple(chosen)


class Surroundings:
    """What all searches of one graph need to know around its nodes, worked out when asked for."""

    def __init__(self, graph: Graph, layer_types: Mapping[str, str] = NO_TYPES) -> None:
        self.graph, self.layer_types = graph, layer_types
        self.found_below: dict[int, set[int]] = {}

    @cached_property
    def readers(self) -> list[list[Node]]:
        """For each node, the nodes that read it."""
        return self.graph.readers()

    @cached_property
    def once(self) -> list[bool]:
        """For each node, whether one node reads it and no output or state takes it."""
        results = {i for _, i in self.graph.outputs} | {new for _, new in self.graph.updates}
        return [
            len(readers) == 1 and node.id not in results
            for node, readers in zip(self.graph.nodes, self.readers, strict=True)
        ]

    def fits(self, wanted: Wanted, node: Node) -> bool:
        """Return whether `node` is what is wanted."""
        layer_type = self.layer_types.get(node.layer, "")
        once = wanted.single_user and self.once[node.id]
        return wanted.fits_kind(node) and wanted.fits_place(node, layer_type, once)

    def below(self, source: int) -> set[int]:
        """Return the ids of all nodes that are computed from this one."""
        if source in self.found_below:
            return self.found_below[source]
        ids = self.found_below[source] = set()
        waiting = [source]
        while waiting:
            for reader in self.readers[waiting.pop()]:
                if reader.id not in ids:
                    ids.add(reader.id)
                    waiting.append(reader.id)
        return ids


class Search:
    """One pattern in one graph: what is known of each node, and which ways lead nowhere."""

    def __init__(self, around: Surroundings, pattern: Pattern) -> None:
        self.around, self.graph, self.pattern = around, around.graph, pattern
        self.known: dict[tuple[int, int], bool] = {}
        self.dead: set[tuple[int, int, str]] = set()

    def at(self, node: Node) -> Iterator[Match]:
        """Yield every match whose first node is `node`, ordered by the ids of the others."""
        if self.fits(0, node):
            block = block_of(node.layer) if self.pattern.same_block else ""
            for nodes in self.extended((node,), block):
                yield Match(nodes, self.pattern.names)

    def fits(self, place: int, node: Node) -> bool:
        key = place, node.id
        if key not in self.known:
            self.known[key] = self.around.fits(self.pattern.nodes[place], node)
        return self.known[key]

    def extended(self, bound: tuple[Node, ...], block: str) -> Iterator[tuple[Node, ...]]:
        """Yield the whole matches that begin with the nodes `bound`, in order."""
        place = len(bound)
        if place == len(self.pattern.nodes):
            yield bound
            return
        key = place, bound[-1].id, block
        if key in self.dead:
            return
        # Depth first, one place of the pattern at a time, candidates by id: so come matches in
        # the order that is promised, and the first of them without the others.
        any_match = False
        for node in self.candidates(bound):
            if self.joins(node, bound, block):
                for nodes in self.extended((*bound, node), block):
                    any_match = True
                    yield nodes
        if not any_match and self.pattern.is_chain:
            # What follows in a chain depends on its last node alone, so that a node that once led
            # nowhere is not tried again: linear in nodes and edges, where it were exponential.
            self.dead.add(key)

    def joins(self, node: Node, bound: tuple[Node, ...], block: str) -> bool:
        if node in bound or not self.fits(len(bound), node):
            return False
        if self.pattern.same_block and block_of(node.layer) != block:
            return False
        nodes = dict(zip(self.pattern.names, (*bound, node), strict=False))
        return all(self.holds(edge, nodes) for edge in self.pattern.ties[len(bound)])

    def holds(self, edge: Edge, nodes: Mapping[str, Node]) -> bool:
        source, target = nodes[edge.source], nodes[edge.target]
        if edge.anything_between:
            ways = target.inputs if edge.input is None else target.inputs[edge.input :][:1]
            return any(i == source.id or i in self.around.below(source.id) for i in ways)
        if edge.input is None:
            return source.id in target.inputs
        return target.inputs[edge.input : edge.input + 1] == (source.id,)

    def candidates(self, bound: tuple[Node, ...]) -> Sequence[Node]:
        """Return the nodes, by id, that may hang on the first edge of the next place."""
        edge = self.pattern.ties[len(bound)][0]
        names = self.pattern.names[: len(bound)]
        if edge.source in names:
            source = bound[names.index(edge.source)]
            if not edge.anything_between:
                return self.around.readers[source.id]
            return [self.graph.nodes[i] for i in sorted(self.around.below(source.id))]
        target = bound[names.index(edge.target)]
        above = self.graph.needed(set(target.inputs)) if edge.anything_between else target.inputs
        return [self.graph.nodes[i] for i in sorted(set(above))]
