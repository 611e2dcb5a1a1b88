"""The norms of a step with the format of their results inside, for `Policy.norm_inner`."""

from __future__ import annotations

from dataclasses import replace

from policysearch.graph import Graph, Node
from policysearch.ops import composite
from policysearch.ops.rounded_norms import ROUNDED_NORMS
from policysearch.policy.presets import NORMS

CALLED = ("group_norm", "rms_norm")
"""Norms that an imported net has as one op each, and their gradients."""


def with_inner_formats(graph: Graph) -> Graph:
    """Return the step, whose formats are chosen, with norms that round all they compute.

    A norm below float32 has its own format inside, and so have its statistics and gradients.
    Running averages of statistics stay float32.
    """
    formats: dict[int, str] = {}
    for node in graph.nodes:
        if node.op.name in NORMS and node.format != "float32":
            formats[node.id] = node.format
            formats |= dict.fromkeys(_statistics(graph, node, first=1), node.format)
    nodes = tuple(_rounded(graph, node, formats) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _statistics(graph: Graph, node: Node, first: int) -> tuple[int, ...]:
    """Return what of the inputs from `first` on says what x is normalised by."""
    return tuple(i for i in node.inputs[first : first + 2] if not _owned(graph.nodes[i]))


def _owned(node: Node) -> bool:
    return node.op.name in ("parameter", "cast")


def _rounded(graph: Graph, node: Node, formats: dict[int, str]) -> Node:
    if node.op.name.removesuffix("_grad") in CALLED and node.format != "float32":
        return replace(node, attrs=(*node.attrs, (composite.INNER_FORMAT, node.format)))
    if node.op.name not in ROUNDED_NORMS:
        return node
    about = (node.id, *(_statistics(graph, node, first=2) if node.role != "fprop" else ()))
    inner = next((formats[i] for i in about if i in formats), None)
    if inner is None:
        return node
    return replace(node, op=ROUNDED_NORMS[node.op.name], attrs=(*node.attrs, ("inner", inner)))
