"""Buffers that a forward pass moves itself: only running statistics of batch norms may be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from policysearch.importers.exported import base_of, in_place


def inside(program: Any, node: Any) -> Iterator[Any]:
    """Yield the nodes of the regions that a node calls, as of `with torch.no_grad()`."""
    for given in node.all_input_nodes:
        if given.op == "get_attr":
            yield from program.graph_module.get_submodule(given.target).graph.nodes


class Moved:
    """Which of these `buffers`, by their placeholders, calls move, and the `nodes` in place."""

    def __init__(self, program: Any, buffers: Collection[str]) -> None:
        self.nodes: set[str] = set()
        self.buffers: set[str] = set()
        for node in program.graph.nodes:
            changed = {base_of(node).name} if in_place(node) else set()
            if any(in_place(part) for part in inside(program, node)):
                changed = {given.name for given in node.all_input_nodes}
            self.buffers |= changed & set(buffers)
            if in_place(node) and not changed.isdisjoint(buffers):
                self.nodes.add(node.name)

    def read_by(self, node: Any) -> str:
        """Return the moved buffer that a node reads, "" where it reads none."""
        read = (base_of(given).name for given in node.all_input_nodes)
        return next((name for name in read if name in self.buffers), "")
