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


def same_bytes(one: str, other: str) -> bool:
    """Return whether values of both formats are stored alike, as tfloat32 is as float32."""
    return one == other or {one, other} == {"float32", "tfloat32"}


def roots(graph: Graph) -> list[int]:
    """Return, for each node, the node whose memory holds its value (mostly itself).

    Four kinds of node have no memory: a reshape is a view; a cast between float32 and tfloat32
    happens as the matrix unit reads; a cast that an update makes of what is stored narrow
    (parameters without masters, their gradients, optimizer state) stays in registers; the casts
    of a float32 gradient into the format it is reduced in, and back, are done by the copies into
    and out of the buffer of the reduction, which float32 needs as well.
    """
    narrow = {
        (node.layer, node.shape)
        for node in graph.nodes
        if node.op.name == "parameter" and format_named(node.format).bits < 32
    }
    root = list(range(len(graph.nodes)))
    for node in graph.nodes:
        if node.op.kind == "move" or (
            node.op.name == "cast"
            and (_free(node, graph.nodes[node.inputs[0]], narrow) or _reduces(node, graph))
        ):
            root[node.id] = root[node.inputs[0]]
    return root


def _free(cast: Node, given: Node, narrow: set[tuple[str, tuple[int, ...]]]) -> bool:
    if same_bytes(cast.format, given.format):
        return True
    kept_narrow = given.op.kind == "source" or (cast.layer, cast.shape) in narrow
    return cast.role == "update" and kept_narrow


def _reduces(cast: Node, graph: Graph) -> bool:
    """Whether a cast is of the reduction of a gradient over devices, into its buffer or out."""
    given = graph.nodes[cast.inputs[0]]
    if cast.role != "update" or cast.format == given.format:
        return False
    if given.role in ("dgrad", "wgrad"):
        return cast.format != "float32" and given.op.name != "amax"
    before = graph.nodes[given.inputs[0]] if given.op.name == "cast" else given
    gradient = given.role == "update" and before.role in ("dgrad", "wgrad")
    return gradient and same_bytes(before.format, cast.format) and cast.format == "float32"
