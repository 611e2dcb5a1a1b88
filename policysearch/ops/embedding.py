"""Rows of a table by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.layout import in_c_order
from policysearch.ops.builder import Builder


def _embedding_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Sum the rows of equal number in their order: sorted by number, they lie side by side."""
    grad, indices = inputs
    numbers = indices.astype(np.intp).ravel()
    rows = in_c_order(grad).reshape(len(numbers), -1)
    order = np.argsort(numbers, kind="stable")
    present, starts = np.unique(numbers[order], return_index=True)
    table = np.zeros(attrs["shape"], np.float32, like=grad)
    table[present] = np.add.reduceat(rows[order], starts, axis=0)
    if attrs.get("padding_index") is not None:
        table[attrs["padding_index"]] = 0.0
    return table


def _emit_embedding_grad(b: Builder, node: Node, grad: int) -> int:
    table, indices = node.inputs
    attrs = {**node.attributes, "shape": b.shape(table)}
    return b.emit(embedding_grad, grad, indices, attrs=attrs)


embedding_grad = Op(
    "embedding_grad",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _embedding_grad,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
    pinned=(1,),
)
embedding = Op(
    "embedding",
    lambda inputs, attrs: (*inputs[1], inputs[0][1]),
    lambda inputs, attrs: inputs[0][inputs[1].astype(np.intp)],
    gradients=(_emit_embedding_grad, None),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (
            rng.standard_normal((6, 4)).astype(np.float32),
            rng.integers(0, 6, (2, 5)).astype(np.float32),
        )
    ),
    keeps_format=True,
    pinned=(1,),
    pointwise=False,
)
"""Rows of a table [count, width] by their numbers, whole and below 2^24: [..., width].

The row `padding_index`, if there is one, has gradient 0, as in torch.
"""
