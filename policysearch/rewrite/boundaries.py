"""Casts at the boundaries of layers, as MindSpore's graph mode makes them.

A layer casts what comes in from outside. What a layer inside it gives stays as it is, so that an
op of the outer layer may read two formats: it runs in the wider one, and so does what follows it
there (ran in MindSpore 2.10; `tests/record_mindspore.py`). Gradients take the same way back, and
those of a value that one layer reads in several places are summed inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from policysearch.graph import Graph, Node
from policysearch.ops.source import is_whole
from policysearch.policy.policy import Policy


class Boundaries:
    """What values pass on their way between layers; nothing where the policy casts at every op.

    Layers with a `low` op cast what comes in. `mixed` holds the forward nodes, by id, that run in
    the widest format they read.
    """

    def __init__(self, graph: Graph, policy: Policy, low: Callable[[Node], bool]) -> None:
        self.graph, self.layers, self.low = graph, dict(policy.layers), low
        self.casts = policy.casts
        self.mixed: set[int] = set()
        self.readers: list[list[Node]] = []
        self.casting: set[str] = set()
        if self.casts == "layer":
            self.readers = graph.readers()
            forward = (n for n in graph.nodes if n.role == "fprop" and n.layer in self.layers)
            self.casting = {node.layer for node in forward if low(node)}

    def find_mixed(self, node: Node, format_of: Callable[[int], str]) -> bool:
        """Return whether a forward node reads another format than its layer's from inside it."""
        if self.casts == "op" or not self.low(node):
            return False
        own = self.layers[node.layer].output if node.layer in self.layers else ""
        if any(self._stays(i, node) and format_of(i) != own for i in deciding(self.graph, node)):
            self.mixed.add(node.id)
        return node.id in self.mixed

    def _stays(self, i: int, reader: Node) -> bool:
        """Return whether a forward value is read as it is: it is mixed, or a low layer's inside."""
        value = self.graph.nodes[i]
        if not _holds(reader.layer, value):
            return False
        return i in self.mixed or (value.layer != reader.layer and self.low(value))

    def arriving(self, node: Node, formats: Mapping[int, str]) -> list[str]:
        """Return, for what a mixed node reads, in which of these `formats` gradients arrive."""
        own, nodes = self.layers[node.layer].dgrad, self.graph.nodes
        return [
            formats[i] if _holds(node.layer, nodes[i]) else own for i in deciding(self.graph, node)
        ]

    def crossed(self, i: int, reader: Node) -> Iterable[str]:
        """Return the formats that old node `i` is cast to before `reader` has it, in order."""
        if self.casts == "op" or reader.role == "update":
            return ()
        value = self.graph.nodes[i]
        gradient = value.role in ("dgrad", "wgrad")
        return self._left(value, reader) if gradient else self._entered(value, reader)

    def _entered(self, value: Node, reader: Node) -> Iterator[str]:
        if is_whole(value):
            return
        if value.op.name != "parameter":
            for name in self._around(reader.layer):
                if not _holds(name, value):
                    yield self.layers[name].output
        mixes = (reader.id if reader.role == "fprop" else reader.of) in self.mixed
        if mixes and not _holds(reader.layer, value):
            yield self.layers[reader.layer].output

    def _left(self, value: Node, reader: Node) -> Iterator[str]:
        """Yield the formats of what a gradient leaves, from inside out."""
        home, target = self._home(value), self._home(reader)
        if value.of in self.mixed and home != target and not _inside(target, home):
            yield self.layers[home].dgrad
        for name in reversed(list(self._around(home))):
            if not _inside(target, name):
                yield self.layers[name].dgrad

    def summed_in(self, i: int) -> str | None:
        """Return the layer in which the gradients of a forward value are summed, if not its own.

        That is the innermost one with formats that all of its readers are in and it is not.
        """
        value = self.graph.nodes[i]
        homes = [node.layer for node in self.readers[i] if node.role == "fprop"]
        for name in reversed([*self._around(homes[0]), homes[0]]):
            if name in self.casting and all(_inside(home, name) for home in homes):
                return None if _holds(name, value) else name
        return None

    def sum_format(self, i: int) -> str | None:
        """Return the format of such a sum, None where it is the value's own."""
        name = None if self.casts == "op" else self.summed_in(i)
        return None if name is None else self.layers[name].dgrad

    def _home(self, node: Node) -> str:
        """Return the layer of a gradient; that of a sum is where it is summed."""
        found = node.attributes.get("gradient_of")
        return (self.summed_in(node.of) or found[0]) if found else node.layer

    def _around(self, layer: str) -> Iterator[str]:
        """Yield the layers that hold this one, the outermost first."""
        parts = layer.split(".") if layer else []
        for end in range(len(parts)):
            name = ".".join(parts[:end])
            if name in self.casting:
                yield name


def deciding(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the inputs that decide a promoted format.

    Whole numbers do not, nor do values without axes beside those with some, as in torch.
    """
    floats = tuple(i for i in node.deciding if not is_whole(graph.nodes[i])) or node.deciding
    return tuple(i for i in floats if graph.nodes[i].shape) or floats


def _inside(layer: str, outer: str) -> bool:
    return layer == outer or not outer or layer.startswith(f"{outer}.")


def _holds(layer: str, value: Node) -> bool:
    return value.op.kind != "source" and _inside(value.layer, layer)
