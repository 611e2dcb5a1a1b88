"""Which nodes take memory of their own, and how much."""

from __future__ import annotations

from functools import lru_cache

from policysearch.formats import format_named
from policysearch.graph import Graph, Node, Shape, size


def node_bytes(node: Node) -> int:
    """Return the bytes of a node's value in its format, rounded up to whole bytes."""
    return _bytes(node.shape, node.format)


@lru_cache(maxsize=4096)
def _bytes(shape: Shape, format: str) -> int:
    return -(-size(shape) * format_named(format).bits // 8)


def roots(graph: Graph) -> list[int]:
    """Return, for each node, the node whose memory holds its value (mostly itself).

    Three kinds of node have no memory: a reshape is a view; a cast between float32 and tfloat32
    happens as the matrix unit reads; a cast that an update makes of what is stored narrow
    (parameters without masters, their gradients, optimizer state) stays in registers.
    """
    narrow = {
        (node.layer, node.shape)
        for node in graph.nodes
        if node.op.name == "parameter" and format_named(node.format).bits < 32
    }
    root = list(range(len(graph.nodes)))
    for node in graph.nodes:
        if node.op.kind == "move" or (
            node.op.name == "cast" and _free(node, graph.nodes[node.inputs[0]], narrow)
        ):
            root[node.id] = root[node.inputs[0]]
    return root


def _free(cast: Node, given: Node, narrow: set[tuple[str, tuple[int, ...]]]) -> bool:
    if cast.format == given.format or {cast.format, given.format} == {"float32", "tfloat32"}:
        return True
    kept_narrow = given.op.kind == "source" or (cast.layer, cast.shape) in narrow
    return cast.role == "update" and kept_narrow
