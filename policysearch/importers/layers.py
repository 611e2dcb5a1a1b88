"""Import rules: the layers torch keeps whole."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import size
from policysearch.importers.elementwise import clamp, divide, multiply
from policysearch.importers.losses import entered
from policysearch.importers.reductions import over, vector_norm
from policysearch.importers.shapes import broadcast_tensors
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import dense
from policysearch.ops.embedding import embedding as embedding_op
from policysearch.ops.margin_losses import cosine_embedding
from policysearch.ops.reduce import sum_over


def linear(
    t: Tracer, x: Tensor, weight: Tensor, bias: Tensor | None = None, apart: bool | str = False
) -> Tensor:
    """x w^T + b over the last axis of x; `apart` as of the op `bias`; a weight may be one row."""
    rows = t.shaped(weight, (size(weight.shape[:-1]), weight.shape[-1]))
    offset = () if bias is None else (t.shaped(bias, (t.b.shape(rows)[0],)),)  # before the product
    product = t.emit_nodes(dense.matmul, t.rows(x), rows, transpose_b=True)
    if offset:
        attrs: dict[str, Any] = {"apart": apart} if apart else {}
        product = t.emit_nodes(dense.bias, product.id, *offset, **attrs)
    return t.view(product, (*x.shape[:-1], *weight.shape[:-1]))


def embedding(
    t: Tracer,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    *_: Any,
) -> Tensor:
    """Look rows up; the row of `padding_idx` gets no gradient, as in torch."""
    if scale_grad_by_freq:
        raise refuse("scale_grad_by_freq", "leave it out")
    attrs: dict[str, Any] = {"padding_index": padding_idx} if padding_idx >= 0 else {}
    rows = t.shaped(indices, (size(indices.shape),))
    table_rows = t.emit_nodes(embedding_op, t.full(weight), rows, **attrs)
    return t.view(table_rows, (*indices.shape, weight.shape[1]))


def cosine_similarity(
    t: Tracer, a: Tensor, b: Tensor, dim: int = 1, epsilon: float = 1e-8
) -> Tensor:
    """The sum of products of both over their lengths, which are no less than epsilon."""
    start = len(t.b.nodes)
    a, b = entered(t, *broadcast_tensors(t, (a, b)))
    axis = dim % len(a.shape)
    lengths = (clamp(t, vector_norm(t, x, 2, axis, True), epsilon) for x in (a, b))
    units = (divide(t, x, length) for x, length in zip((a, b), lengths, strict=True))
    result = over(t, sum_over, multiply(t, *units), axis)
    t.list_under(cosine_embedding.name, start)
    return result


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "linear": linear,
        "embedding": embedding,
        "cosine_similarity": cosine_similarity,
    }
)
