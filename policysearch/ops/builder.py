"""How a graph is made: nodes collected one by one, the gradient nodes of a value, new ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from policysearch.formats import Rounding
from policysearch.graph import Attrs, Graph, Node, Op, Role, Shape
from policysearch.values import InputError

NEAREST = Rounding()


class _Draft:
    """A node while it is filled in: it has the slots of one, and then becomes one."""

    __slots__ = tuple(field.name for field in fields(Node))


def new_node(
    id: int,
    op: Op,
    inputs: tuple[int, ...],
    shape: Shape,
    role: Role,
    layer: str = "",
    name: str = "",
    source: str = "",
    of: int = -1,
    format: str = "float32",
    accumulator: str = "float32",
    rounding: Rounding = NEAREST,
    fused: bool = False,
    attrs: tuple[tuple[str, Any], ...] = (),
    line: str = "",
) -> Node:
    """Return `Node` of the same arguments, which takes four times as long."""
    made: Any = _Draft()
    made.id, made.op, made.inputs, made.shape, made.role = id, op, inputs, shape, role
    made.layer, made.name, made.source, made.of, made.format = layer, name, source, of, format
    made.accumulator, made.rounding, made.fused, made.attrs = accumulator, rounding, fused, attrs
    made.line = line
    made.__class__ = Node
    return made


def changed_node(node: Node, **others: Any) -> Node:
    """Return a copy with other fields, as `dataclasses.replace` does in six times as long."""
    made: Any = _Draft()
    made.id, made.op, made.inputs, made.shape = node.id, node.op, node.inputs, node.shape
    made.role, made.layer, made.name, made.of = node.role, node.layer, node.name, node.of
    made.source, made.format, made.attrs = node.source, node.format, node.attrs
    made.accumulator, made.rounding, made.fused = node.accumulator, node.rounding, node.fused
    made.line = node.line
    for name, value in others.items():
        setattr(made, name, value)
    made.__class__ = Node
    return made


class _Scope:
    """While it is entered, the builder has these defaults too; a generator takes thrice as long."""

    def __init__(self, b: Builder, defaults: dict[str, Any]) -> None:
        self.b, self.defaults = b, defaults

    def __enter__(self) -> None:
        self.outer = self.b._defaults
        self.b._defaults = {**self.outer, **self.defaults}

    def __exit__(self, *error: object) -> None:
        self.b._defaults = self.outer


class Builder:
    """Collects nodes while a step is traced or rewritten."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.unseen: set[int] = set()
        """Nodes that torch has none for: their gradients are passed on as soon as they arrive."""
        self._defaults: dict[str, Any] = {"layer": "", "role": "fprop", "source": ""}

    def scope(self, **defaults: Any) -> _Scope:
        """Nodes emitted inside take these fields (layer, role, source) unless told otherwise."""
        return _Scope(self, defaults)

    def emit(self, op: Op, *inputs: int, attrs: Attrs | None = None, **fields: Any) -> int:
        """Append a node and return its id; shape and missing fields are derived.

        Raises InputError where the shapes do not go together, as of a graph that a file names.
        """
        given, shapes = attrs or {}, [self.nodes[i].shape for i in inputs]
        try:
            shape = op.shape(shapes, given)
        except InputError:
            raise
        except ValueError:
            where = f"graph: {op.name} of {fields.get('layer', self._defaults['layer'])!r}"
            raise InputError(f"{where}: shapes {shapes}; expected ones that go together") from None
        fields = {**self._defaults, **fields}
        fields["source"] = fields["source"] or op.name
        id = len(self.nodes)
        self.nodes.append(new_node(id, op, inputs, shape, attrs=tuple(given.items()), **fields))
        return id

    def copy(self, node: Node, inputs: Sequence[int], **changes: Any) -> int:
        """Append a copy of `node` with new inputs and changed fields; return its id."""
        changes = {"id": len(self.nodes), "inputs": tuple(inputs), "of": -1, **changes}
        self.nodes.append(changed_node(node, **changes))
        return len(self.nodes) - 1

    def shape(self, id: int) -> Shape:
        return self.nodes[id].shape

    def graph(self, outputs: Mapping[str, int], updates: Sequence[tuple[int, int]] = ()) -> Graph:
        return Graph(tuple(self.nodes), tuple(outputs.items()), tuple(updates))


def backward(b: Builder, root: int, seed: int, wanted: Sequence[int], add: Op) -> dict[int, int]:
    """Emit the gradient nodes of `root` and return {wanted node: its gradient}.

    `seed` is the gradient of `root`. Only paths that lead to a wanted node are followed. The
    gradient of a parameter has role "wgrad", every other one "dgrad"; a value used more than
    once gets its gradients summed by `add`, whose attribute "gradient_of" holds the layer and the
    op of that value.
    """
    forward = list(b.nodes[: root + 1])
    reaches = set(wanted)
    for node in forward:
        if any(i in reaches for i in node.inputs):
            reaches.add(node.id)
    grads: dict[int, int] = {root: seed}
    for node in reversed(forward):
        if node.id in grads:
            _pass_on(b, node, grads, reaches, add)
    return {i: grads[i] for i in wanted if i in grads}


def _pass_on(
    b: Builder, node: Node, grads: dict[int, int], reaches: Collection[int], add: Op
) -> None:
    """Add the gradients of what `node` reads to `grads`; a source has none to pass on."""
    if node.op.kind == "source":
        return
    for position, i in enumerate(node.inputs):
        rule = node.op.gradients[position] if node.op.gradients else None
        if i not in reaches or rule is None:
            continue
        role = "wgrad" if b.nodes[i].op.kind == "source" else "dgrad"
        scope = {"layer": node.layer, "role": role, "source": node.source, "line": node.line}
        with b.scope(**scope, of=node.id):
            grad = rule(b, node, grads[node.id])
            of = {"gradient_of": (b.nodes[i].layer, b.nodes[i].op.name)}
            fields: dict[str, Any] = {"attrs": of, "source": add.name, "of": i}
            grads[i] = b.emit(add, grads[i], grad, **fields) if i in grads else grad
        if i in b.unseen:
            _pass_on(b, b.nodes[i], grads, reaches, add)
            del grads[i]


def renumbered(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Return the graph of `nodes` alone, in their order, which gives the new ids.

    They hold the inputs of each before it, the outputs of `graph` and both ends of every update.
    """
    place = {node.id: position for position, node in enumerate(nodes)}
    same = next((i for i, node in enumerate(nodes) if node.id != i or node.of >= i), len(nodes))
    moved = (*nodes[:same], *(_moved_node(node, place) for node in nodes[same:]))
    outputs = tuple((name, place[i]) for name, i in graph.outputs)
    return Graph(moved, outputs, tuple((place[old], place[new]) for old, new in graph.updates))


def _moved_node(node: Node, place: Mapping[int, int]) -> Node:
    """Return the node under new ids; itself where they are the old ones."""
    id, of = place[node.id], place.get(node.of, -1)
    inputs = tuple([place[i] for i in node.inputs])
    if (id, of, inputs) == (node.id, node.of, node.inputs):
        return node
    return changed_node(node, id=id, inputs=inputs, of=of)


def without_unread(graph: Graph) -> Graph:
    """Return the graph without nodes that no output and no update needs (sources stay)."""
    kept = {i for _, i in graph.outputs} | {i for pair in graph.updates for i in pair}
    needed = graph.needed(kept)
    left = [n for n in graph.nodes if n.id in needed or n.op.kind == "source"]
    return graph if len(left) == len(graph.nodes) else renumbered(graph, left)
