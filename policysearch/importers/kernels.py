"""The pieces of one kernel of torch as one op: float32 inside, rounded once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from policysearch.graph import Node
from policysearch.importers.program import FLOATS, TRUTHS, Call, Program, Ref
from policysearch.importers.tracer import FILLED, Tensor, Tracer
from policysearch.nn.model import emit_data
from policysearch.ops.builder import Builder
from policysearch.ops.composite import composite
from policysearch.ops.source import is_whole
from policysearch.values import InputError


class Kernel:
    """Calls that are the pieces of one kernel, and the values of `t` that they read."""

    def __init__(self, t: Tracer, calls: Sequence[Call], emit: Any) -> None:
        self.t, self.calls, self._emit = t, calls, emit
        made = {call.name for call in calls}
        self.name = (calls[0].piece.kernel if calls[0].piece else "").rstrip("_0123456789")
        named = (name for call in calls for name in names_in((call.arguments, call.options)))
        self.operands = {name: t.value(name) for name in named if name not in made}
        if not all(isinstance(x, Tensor) for x in self.operands.values()):
            raise InputError("several results at once; expected tensors")

    def nodes(self, names: Collection[str]) -> tuple[Node, ...]:
        """Return the nodes that compute these values, in a graph of their own."""
        b = Builder()
        inner = self._call_tracer(b, {})
        results = [inner.full(inner.value(name)) for name in names]
        graph = b.graph({})
        needed = graph.needed(set(results))
        return tuple(node for node in graph.nodes if node.id in needed)

    def emit(self, name: str) -> Tensor:
        """Emit the value of this name as one op, and return it."""
        t = self.t
        nodes = self.nodes([name])
        read = [node.name for node in nodes if node.op.kind == "source"]
        ids = [self._node(operand) for operand in read]

        def emit(b: Builder, inputs: Sequence[int]) -> int:
            inner = self._call_tracer(b, dict(zip(read, inputs, strict=True)))
            return inner.full(inner.value(name))

        whole = [place for place, i in enumerate(ids) if is_whole(t.b.nodes[i])]
        one = composite(self.name, [t.b.shape(i) for i in ids], emit, whole)
        return t.emit_nodes(one, *ids, source=_source([n for n in nodes if n.op.kind != "source"]))

    def _node(self, name: str) -> int:
        """Return the node outside of an operand, or of a number that every model has."""
        if name in self.operands:
            return self.t.full(self.operands[name])
        return self.t.filled({name: number for number, name in FILLED.items()}[name], ())

    def _call_tracer(self, b: Builder, fed: Mapping[str, int]) -> Tracer:
        """Return a tracer that has emitted the calls; what is not `fed` is a source by its name."""
        inner = Tracer(b, Program((), (), (), ()), {}, self.t.batch, self.t.training)
        for name in FILLED.values():
            inner.keep(name, Tensor(fed[name] if name in fed else emit_data(b, name, ()), ()))
        for name, x in self.operands.items():
            whole = self.t.is_whole(x)
            node = fed[name] if name in fed else emit_data(b, name, x.shape, whole=whole)
            inner.keep(name, Tensor(node, x.shape), TRUTHS if self.t.is_mask(x) else FLOATS)
        for call in self.calls:
            with b.scope(role="fprop" if call.kind == FLOATS else "input"):
                self._emit(inner, call)
        return inner


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of the values that arguments refer to."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple):
        for part in value:
            yield from names_in(part)


def rounds_once(nodes: Sequence[Node]) -> bool:
    """Return whether more than one of these rounds, so that a kernel that rounds once differs."""
    rounding = [n for n in nodes if n.role == "fprop" and n.op.kind not in ("source", "move")]
    return len(rounding) > 1


def _source(nodes: Sequence[Node]) -> str:
    """Return the op list of a kernel of none: that of an op inside that runs in any format."""
    inside = [node.op for node in nodes if node.role == "fprop"]
    anywhere = [op.name for op in inside if op.placement == "promote"]
    return anywhere[0] if anywhere else inside[-1].name
