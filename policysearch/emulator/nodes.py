"""What running a node needs beside its op, the same however it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from policysearch.accumulators import accumulator_named
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.layout import empty, stored_flat
from policysearch.ops.block_products import TAKES_SCALES
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.gather import STEPS
from policysearch.ops.rounded_arithmetic import SEEN
from policysearch.products.product import product
from policysearch.rounding.rounder import Fast

Observer = Callable[[Node, FloatArray, FloatArray], None]
"""Called with a node and some of its values, flat, before and after rounding; all come once.

So do the values that an op rounds inside, before those of its node.
"""


def inner_attributes(node: Node) -> dict[str, object]:
    """Return the node's attributes and, below float32, INNER_FORMAT where it has STEPS."""
    attrs: dict[str, object] = node.attributes
    if attrs.get(STEPS) and node.format != "float32":
        attrs[INNER_FORMAT] = node.format
    return attrs


def attributes(
    graph: Graph, node: Node, fast: Fast, observer: Observer | None = None
) -> dict[str, object]:
    """Return the node's attributes and what its formats add to them.

    "product" is its accumulator's where not BLAS. The `observer` is told of what is rounded inside.
    """
    attrs = inner_attributes(node)
    if observer is not None:
        attrs[SEEN] = partial(observer, node)
    if node.op.kind == "gemm" and node.accumulator != "float32":
        left, right, *scales = (format_named(graph.nodes[i].format) for i in node.inputs)
        row, of = accumulator_named(node.accumulator), next(iter(scales), None)
        attrs["product"] = product(row, (left, right), fast=fast, scale=of)
        attrs[TAKES_SCALES] = row.kind == "tensor_core"
    return attrs


def draws(node: Node, step: int) -> int:
    """Return the counter that the node's values are rounded by chance with (see `Rounder`)."""
    return (step << 32) + (node.id << 12)


def source_array(node: Node, given: Mapping[str, FloatArray]) -> FloatArray:
    """Return the array of a source: that of `given` under its name, or one of zeros."""
    if node.name not in given:
        return empty(node.shape)
    array = given[node.name]
    # kernels read the flat numbers: in another order they would be those of another array
    in_order = not array.size or np.shares_memory(stored_flat(array), array)
    assert in_order, f"{node.name} is not in storage order"
    return array
