"""How a step keeps its state: moments in blocks with scales, parameters with what rounding lost.

That is a sum of it (Kahan), or the half of float32's bits that bfloat16 does not keep (remainder).

A pass over a step whose formats are chosen. Sources as of `policysearch.ops.kept_state`; torchao
keeps a state in blocks where it has 4096 values or more and a multiple of the block, else in
float32 (`torchao/optim/adam.py`, `_new_buffer`).
"""

from __future__ import annotations

from typing import Any

from policysearch.formats import UINT16, Rounding, format_named
from policysearch.graph import Graph, Node, size
from policysearch.ops.builder import Builder
from policysearch.ops.kept_state import (
    joined_halves,
    kahan_lost,
    kahan_step,
    kahan_sum,
    lower_half,
    state_codes,
    state_scale,
    state_values,
)
from policysearch.ops.source import cast, state
from policysearch.policy.policy import Policy

SMALLEST = 4096
"""Values of a state that is kept in blocks."""

SCALE, LOST, REMAINDER = ".scale", ".lost", ".remainder"
"""What the states beside a state, and beside a parameter, are called after it."""

HALVED = "bfloat16"
"""The format of parameters beside which a remainder is kept."""


def with_kept_state(graph: Graph, policy: Policy) -> Graph:
    """Return `graph`, to which the policy is applied, with its states as the policy keeps them."""
    if not policy.state_block and policy.compensation == "none":
        return graph
    return _Keeping(graph, policy).made()


class _Keeping:
    """The new graph: `new` says what each old node became, `read` what reads of a state see."""

    def __init__(self, graph: Graph, policy: Policy) -> None:
        self.graph, self.policy, self.b = graph, policy, Builder()
        self.new: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.beside: dict[int, int] = {}
        self.old_of = {new: old for old, new in graph.updates}
        self.updates: list[tuple[int, int]] = []

    def made(self) -> Graph:
        for node in self.graph.nodes:
            if node.op.kind == "source":
                self._source(node)
            elif node.id in self.old_of:
                self._new_value(node)
            elif node.op.name == "cast" and self._is_kept(node.inputs[0]):
                self.new[node.id] = self._values(node.inputs[0])
            else:
                self.new[node.id] = self.b.copy(node, self._inputs(node))
        outputs = {name: self.new[i] for name, i in self.graph.outputs}
        return self.b.graph(outputs, self.updates)

    def _inputs(self, node: Node) -> list[int]:
        halved = node.role == "update" and self.policy.compensation == "remainder"
        read = self._whole if halved else self._read
        return [read(i) for i in node.inputs]

    def _read(self, i: int) -> int:
        return self._values(i) if self._is_kept(i) else self.new[i]

    def _whole(self, i: int) -> int:
        """Return what an update reads in the place of old node `i`: of a parameter, both halves."""
        node = self.graph.nodes[i]
        source = node.inputs[0] if node.op.name == "cast" else i
        parameter = self.graph.nodes[source]
        if parameter.op.name != "parameter" or source not in self.beside:
            return self._read(i)
        if source not in self.read:
            with self._scope(parameter):
                halves = (self.new[source], self.beside[source])
                self.read[source] = self.b.emit(joined_halves, *halves)
        return self.read[source]

    def _is_kept(self, i: int) -> bool:
        state = self.graph.nodes[i].op.name == "state"
        return state and (i in self.read or i in self.beside)

    def _values(self, i: int) -> int:
        """Return what a kept state stands for, made where it is first read, for all who read it."""
        if i not in self.read:
            attrs = {"block": self.policy.state_block}
            with self._scope(self.graph.nodes[i]):
                read = self.b.emit(state_values, self.new[i], self.beside[i], attrs=attrs)
            self.read[i] = read
        return self.read[i]

    def _is_blocked(self, node: Node) -> bool:
        narrow = node.op.name == "state" and format_named(node.format).bits < 16
        return bool(self.policy.state_block) and narrow and _is_moment(node, self.graph)

    def _is_compensated(self, node: Node) -> bool:
        if node.op.name != "parameter" or node.id not in self.old_of.values():
            return False
        kahan = self.policy.compensation == "kahan" and node.format != "float32"
        return kahan or (self.policy.compensation == "remainder" and node.format == HALVED)

    def _source(self, node: Node) -> None:
        if not self._is_blocked(node):
            self.new[node.id] = self.b.copy(node, ())
            if self._is_compensated(node):
                kahan = self.policy.compensation == "kahan"
                suffix, stored = (LOST, node.format) if kahan else (REMAINDER, UINT16.name)
                self.beside[node.id] = self._state(node, suffix, node.shape, stored)
            return
        block, count = self.policy.state_block, size(node.shape)
        if count < SMALLEST or count % block:
            self.new[node.id] = self.b.copy(node, (), format="float32")
            self.read[node.id] = self.new[node.id]
            return
        self.new[node.id] = self.b.copy(node, ())
        self.beside[node.id] = self._state(node, SCALE, (count // block,), "float32")

    def _new_value(self, node: Node) -> None:
        old = self.graph.nodes[self.old_of[node.id]]
        if old.op.name == "parameter" and old.id in self.beside:
            move = self._store_kahan if self.policy.compensation == "kahan" else self._store_halves
            move(node, old)
        elif self._is_kept(old.id):
            self._kept(node, old)
        else:
            self.new[node.id] = self.b.copy(node, self._inputs(node))
            self.updates.append((self.new[old.id], self.new[node.id]))

    def _wide(self, node: Node) -> int:
        """Return the new value as it is before it is rounded to where it is stored."""
        if node.op.name == "cast":
            return self.new[node.inputs[0]]
        return self.b.copy(node, self._inputs(node), format="float32", rounding=Rounding())

    def _kept(self, node: Node, old: Node) -> None:
        wide = self._wide(node)
        self.new[node.id] = wide
        if old.id not in self.beside:
            self.updates.append((self.new[old.id], wide))
            return
        maximum = format_named(old.format).max
        attrs = {"block": self.policy.state_block, "maximum": maximum}
        with self._scope(old):
            scales = self.b.emit(state_scale, wide, attrs=attrs)
            stored: dict[str, Any] = {"format": old.format, "rounding": node.rounding}
            codes = self.b.emit(state_codes, wide, scales, attrs=attrs, **stored)
        self.updates += [(self.new[old.id], codes), (self.beside[old.id], scales)]

    def _store_kahan(self, node: Node, old: Node) -> None:
        wide, before, lost = self._wide(node), self.new[old.id], self.beside[old.id]
        stored: dict[str, Any] = {"format": old.format}
        with self._scope(old):
            gathered = self.b.emit(kahan_sum, lost, wide, before, **stored)
            moved = self.b.emit(kahan_step, before, gathered, **stored)
            left = self.b.emit(kahan_lost, gathered, before, moved, **stored)
        self.new[node.id] = moved
        self.updates += [(before, moved), (lost, left)]

    def _store_halves(self, node: Node, old: Node) -> None:
        wide = self._wide(node)
        with self._scope(old):
            kept = self.b.emit(cast, wide, format=HALVED, rounding=Rounding("nearest_away"))
            left = self.b.emit(lower_half, wide, format=UINT16.name)
        self.new[node.id] = kept
        self.updates += [(self.new[old.id], kept), (self.beside[old.id], left)]

    def _state(self, node: Node, suffix: str, shape: tuple[int, ...], format: str) -> int:
        fields: dict[str, Any] = {"role": "input", "layer": node.layer, "format": format}
        return self.b.emit(state, attrs={"shape": shape}, name=node.name + suffix, **fields)

    def _scope(self, node: Node) -> Any:
        return self.b.scope(layer=node.layer, role="update")


def _is_moment(node: Node, graph: Graph) -> bool:
    """Return whether a state is an optimizer's: of its parameter's shape, named after it."""
    owner = node.name.rpartition(".")[0]
    return any(n.op.name == "parameter" and n.name == owner for n in graph.nodes)
