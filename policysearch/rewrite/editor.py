"""Changes to a graph: new nodes with names that say where they come from, and who reads them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

from policysearch.graph import Attrs, Graph, Node, Op
from policysearch.nn.model import NEXT
from policysearch.ops.builder import changed_node, renumbered
from policysearch.values import InputError

Readers = Callable[[Node], bool]


def everyone(reader: Node) -> bool:
    """Return True: every node that reads the old value reads the new one."""
    return True


class Editor:
    """One rule at work on one graph; `finished` gives the graph it leaves.

    Nodes keep their ids until then, new ones get the next. A new node is called
    "<layer>.<rule>.<op>", with a number from 2 where there is such a node. `copies` holds
    (name of a copied source, name of the source it was copied from) pairs: who runs the graph
    feeds the copy.
    """

    def __init__(self, graph: Graph, rule: str) -> None:
        self.graph, self.rule = graph, rule
        self.nodes = list(graph.nodes)
        self.outputs = dict(graph.outputs)
        self.updates = list(graph.updates)
        self.copies: list[tuple[str, str]] = []
        self._names = {node.name for node in graph.nodes}
        self._order: list[tuple[int, int]] = [(node.id, 0) for node in graph.nodes]
        self._begun = len(self.nodes)
        self._kept_for: dict[int, int] = {}
        self._taken = {*self.outputs.values(), *(new for _, new in self.updates)}

    @cached_property
    def _readers(self) -> list[set[int]]:
        """For each node, the ids of those that read it."""
        readers: list[set[int]] = [set() for _ in self.nodes]
        for node in self.nodes:
            for i in node.inputs:
                readers[i].add(node.id)
        return readers

    @cached_property
    def _gradients(self) -> dict[int, Node]:
        """By forward node that has gradients, the first of them."""
        return {node.of: node for node in reversed(self.graph.nodes)}

    def begin(self) -> None:
        """Begin the change at another match: from now on, nodes made before it are old ones."""
        self._begun = len(self.nodes)

    def inputs(self, node: Node) -> tuple[int, ...]:
        """Return what `node` reads by now; an earlier match may have changed it."""
        return self.nodes[node.id].inputs

    def shape(self, id: int) -> tuple[int, ...]:
        """Return the shape of a node."""
        return self.nodes[id].shape

    def emit(
        self, op: Op, *inputs: int, at: Node, attrs: Attrs | None = None, **fields: Any
    ) -> int:
        """Add a node of the layer and role of node `at`, placed behind it; return its id.

        `fields` are those of `Node` that differ. Raises InputError, naming rule and node, where
        the inputs do not fit the op.
        """
        attributes = dict(attrs or {})
        shapes = [self.nodes[i].shape for i in inputs]
        try:
            shape = op.shape(shapes, attributes)
        except (InputError, ValueError, IndexError, KeyError, AssertionError, TypeError) as error:
            raise self._fault(at, f"op {op.name!r} on shapes {shapes}: {error}") from None
        usual = {"role": at.role, "layer": at.layer, "source": op.name}
        node = Node(
            len(self.nodes),
            op,
            inputs,
            shape,
            attrs=tuple(attributes.items()),
            **{**usual, **fields},
        )
        return self._add(node, at, op.name)

    def copy(self, node: Node, inputs: Sequence[int], at: Node | None = None) -> int:
        """Add a copy of `node` that reads `inputs`, placed behind `at`; return its id."""
        new = changed_node(node, id=len(self.nodes), inputs=tuple(inputs))
        return self._add(new, at or node, node.name or node.op.name)

    def duplicate(self, node: Node, state: Literal["shared", "copied"] = "shared") -> int:
        """Add a second node that computes what `node` does; return its id.

        It reads the same parameters, statistics and optimizer states, or copies of its own, which
        move by copies of what moves the originals.
        """
        inputs = list(self.inputs(node))
        if state == "copied":
            states = ("parameter", "state", "buffer")
            inputs = [
                self.copied_source(self.nodes[i]) if self.nodes[i].op.name in states else i
                for i in inputs
            ]
        return self.copy(node, inputs)

    def copied_source(self, source: Node) -> int:
        """Add a copy of a source and of the nodes that make its next value; return its id."""
        new = self.copy(source, ())
        name = self.nodes[new].name
        self.copies.append((name, source.name))
        for value in [value for old, value in self.updates if old == source.id]:
            self.updates.append((new, self._copied_way(source.id, new, value)))
            self._taken.add(self.updates[-1][1])
        if NEXT + source.name in self.outputs:
            value = self.outputs[NEXT + source.name]
            self.outputs[NEXT + name] = self._copied_way(source.id, new, value)
            self._taken.add(self.outputs[NEXT + name])
        return new

    def _copied_way(self, source: int, copied: int, value: int) -> int:
        """Copy the nodes between a source and `value`, its next one; return the copy of that."""
        copies = {source: copied}
        # only what depends on the source is copied: the gradient that moves it is shared
        for node in [self.nodes[i] for i in sorted(self._needed_nodes({value}))]:
            if node.id != source and any(i in copies for i in self.inputs(node)):
                copies[node.id] = self.copy(node, [copies.get(i, i) for i in self.inputs(node)])
        return copies.get(value, value)

    def redirect(
        self,
        old: Node,
        new: int,
        *,
        readers: Readers = everyone,
        outputs: bool = True,
        same_value: bool = False,
        changes: tuple[Literal["shape", "format"], ...] = (),
    ) -> None:
        """Let the `readers` of `old` read node `new`; so do `outputs` and updates, unless told.

        What was added since `begin` still reads `old`. Raises InputError, naming rule and node,
        where the new node has another shape or format and `changes` does not allow it, and where
        gradients of `old` were already made and `new` has not the `same_value`.
        """
        target = self.nodes[new]
        for what in ("shape", "format"):
            before, after = getattr(old, what), getattr(target, what)
            if before != after and what not in changes:
                raise self._fault(old, f"{what} {_shown(after)}; expected {_shown(before)}")
        if old.id in self._gradients and old.role == "fprop" and not same_value:
            fault = f"its gradient {self._gradients[old.id].op.name!r} is there already"
            raise self._fault(old, f"{fault}; expected the rule before the backward pass")
        for id in sorted(i for i in self._readers[old.id] if i < self._begun):
            node = self.nodes[id]
            if readers(node):
                inputs = tuple(new if i == old.id else i for i in node.inputs)
                self.nodes[id] = changed_node(node, inputs=inputs)
                self._readers[old.id].discard(id)
                self._readers[new].add(id)
        if outputs and old.id in self._taken:
            self._taken.add(new)
            self.outputs = {name: new if i == old.id else i for name, i in self.outputs.items()}
            self.updates = [(state, new if i == old.id else i) for state, i in self.updates]
        self._kept_for[old.id] = new

    def refuse(self, node: Node, reason: str) -> InputError:
        """Return the error that the rule cannot be applied at `node`, to raise."""
        return self._fault(node, reason)

    def finished(self) -> Graph:
        """Return the changed graph in an order in which it runs, without what nothing needs.

        Sources stay. Raises InputError where a node would need itself.
        """
        # a gradient node names the forward node it belongs to: where that is gone, its replacement
        roots = set(self.outputs.values()) | {i for pair in self.updates for i in pair}
        needed = self._needed_nodes(roots)
        sources = {node.id for node in self.nodes if node.op.kind == "source"}
        ordered = self._ordered_nodes(needed | sources)
        moved = [
            node
            if node.of in needed
            else changed_node(node, of=self._kept_for.get(node.of, node.of))
            for node in ordered
        ]
        graph = Graph(tuple(self.nodes), tuple(self.outputs.items()), tuple(self.updates))
        return renumbered(graph, moved)

    def _add(self, node: Node, at: Node, what: str) -> int:
        scope = ".".join(part for part in (at.layer, self.rule, what) if part)
        name, number = scope, 1
        while name in self._names:
            number += 1
            name = f"{scope}{number}"
        self._names.add(name)
        for i in node.inputs:
            self._readers[i].add(node.id)
        self._readers.append(set())
        self.nodes.append(changed_node(node, name=name))
        self._order.append((self._order[at.id][0], len(self.nodes)))
        return node.id

    def _needed_nodes(self, wanted: set[int]) -> set[int]:
        needed, waiting = set(wanted), list(wanted)
        while waiting:
            fresh = set(self.nodes[waiting.pop()].inputs) - needed
            needed |= fresh
            waiting += fresh
        return needed

    def _ordered_nodes(self, wanted: set[int]) -> list[Node]:
        """Return the wanted nodes, inputs first and otherwise in the order they were in."""
        # A topological sort (A. B. Kahn, CACM 5(11), 1962) whose ready nodes wait in a heap by the
        # place they had: what a rule did not touch keeps its order, and with it its numbers, and a
        # new node comes right behind the one it was made at.
        missing = {i: len(set(self.nodes[i].inputs)) for i in wanted}
        readers: dict[int, list[int]] = {i: [] for i in wanted}
        for i in wanted:
            for source in set(self.nodes[i].inputs):
                readers[source].append(i)
        ready = [(self._order[i], i) for i in wanted if not missing[i]]
        heapq.heapify(ready)
        ordered = []
        while ready:
            i = heapq.heappop(ready)[1]
            ordered.append(self.nodes[i])
            for reader in readers[i]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, (self._order[reader], reader))
        if len(ordered) < len(wanted):
            stuck = next(node for node in self.nodes if missing.get(node.id))
            raise self._fault(stuck, "it would need its own value; expected no cycle")
        return ordered

    def _fault(self, node: Node, reason: str) -> InputError:
        where = f"[{node.id}] {node.name or node.op.name} of layer {node.layer!r}"
        return InputError(f"rule {self.rule!r}: node {where}: {reason}")


def _shown(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
