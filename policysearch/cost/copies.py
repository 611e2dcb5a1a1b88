"""Which transpositions a library copies: those that a reader needs in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from policysearch.cost.kernels import Kernel
from policysearch.graph import Graph, Node, Shape

ATTENTION = "flash_attention"
"""Ops of this name, and their gradients, take heads and positions in any order, and write positions
before heads (torch's `scaled_dot_product_attention`, `aten/src/ATen/native/transformers`)."""

HEADS_BACK = (0, 2, 1, 3)
"""Axes by which what attention gives [batch, heads, positions, values] is read as it lies."""

IN_PLACE = ("bias_grad", "sum_to")
"""Ops beside elementwise ones whose kernels read elements wherever they lie."""

ALONG_ANY_AXIS = ("softmax", "cross_entropy")
"""Words in the names of ops that libraries have along any axis, not the last alone."""


def copies_of(graph: Graph, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Return the kernels of transpositions outside `kernels` that a library copies for."""
    grouped = {node.id for kernel in kernels for node in kernel.nodes}
    return tuple(
        Kernel((node,), node, tuple(graph.inputs_of(node)), (node,))
        for node in copied(graph)
        if node.id not in grouped
    )


def copied(graph: Graph) -> list[Node]:
    """Return the transpositions whose values are written in their new order; others are views.

    Attention writes positions before heads, and what is made of that element by element lies so
    as well: what puts them so is no copy, any other order is.
    """
    readers, lying = graph.readers(), _heads_last(graph)

    def is_copied(node: Node) -> bool:
        order = order_of(graph, node)
        lies_so = order.axes == HEADS_BACK
        return not lies_so if node.inputs[0] in lying else order.is_wanted(node, readers)

    return [node for node in graph.nodes if node.op.name == "transpose" and is_copied(node)]


def _heads_last(graph: Graph) -> set[int]:
    """Return the ids of what attention writes, and of what is made of it element by element."""
    lying: set[int] = set()
    for node in graph.nodes:
        made_of = node.op.kind == "elementwise" or node.op.name in ("slice", "reshape")
        if node.op.name.startswith(ATTENTION) or (made_of and not lying.isdisjoint(node.inputs)):
            lying.add(node.id)
    return lying


@dataclass(frozen=True)
class Order:
    """How a transposition [split] puts its axes."""

    axes: tuple[int, ...]
    split: tuple[int, ...]

    @property
    def is_matrix(self) -> bool:
        """Whether at most its two last axes change places."""
        return self.axes[:-2] == tuple(range(len(self.axes) - 2))

    def merges(self, shape: Shape) -> bool:
        """Whether a shape takes axes as one that do not lie beside each other, as no view does."""
        ends, whole = set(), 1
        for extent in shape:
            whole *= extent
            ends.add(whole)
        inside = 1
        for axis, following in pairwise(self.axes):
            inside *= self.split[axis]
            beside = following == axis + 1 or 1 in (self.split[axis], self.split[following])
            if inside not in ends and not beside:
                return True
        return False

    def is_wanted(self, value: Node, readers: Sequence[Sequence[Node]]) -> bool:
        """Whether a reader of a value in this order needs it in that of its shape.

        A cast and a piece keep the order of their operand; norms, and all else that is not named,
        need theirs.
        """
        return any(self._is_needed_by(reader, value, readers) for reader in readers[value.id])

    def _is_needed_by(self, reader: Node, value: Node, readers: Sequence[Sequence[Node]]) -> bool:
        name = reader.op.name
        if name == "reshape" and self.merges(reader.shape):
            return not (self.is_matrix and _is_read_along_any_axis(reader, readers))
        if name in ("reshape", "cast", "slice"):
            return self.is_wanted(reader, readers)
        if name.startswith(ATTENTION):
            return self.axes[-1] != len(self.axes) - 1
        if reader.op.kind == "gemm":  # a matrix may lie in rows or columns, any distance apart
            return len(self.axes) - 1 not in self.axes[-2:] or self.merges(value.shape)
        if self.is_matrix and _is_along_any_axis(reader):
            return False
        return reader.op.kind != "elementwise" and name not in IN_PLACE


def order_of(graph: Graph, node: Node) -> Order:
    """Return how a transposition puts its axes; without a split of its own those of its input."""
    split = node.attributes.get("split", graph.nodes[node.inputs[0]].shape)
    return Order(tuple(node.attributes["axes"]), tuple(split))


def _is_along_any_axis(node: Node) -> bool:
    return any(word in node.op.name for word in ALONG_ANY_AXIS)


def _is_read_along_any_axis(value: Node, readers: Sequence[Sequence[Node]]) -> bool:
    return all(
        _is_along_any_axis(reader)
        or (reader.op.name == "cast" and _is_read_along_any_axis(reader, readers))
        for reader in readers[value.id]
    )
