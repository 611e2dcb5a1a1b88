"""Import rules: the layers and losses torch keeps whole."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import size
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import dense
from policysearch.ops.embedding import embedding as embedding_op
from policysearch.ops.loss import IGNORED, mean_squared_error, token_cross_entropy


def linear(
    t: Tracer, x: Tensor, weight: Tensor, bias: Tensor | None = None, apart: bool = False
) -> Tensor:
    """x w^T + b over the last axis of x; `apart`: the product is rounded before b is added."""
    product = t.emit_nodes(dense.matmul, t.rows(x), t.full(weight), transpose_b=True)
    if bias is not None:
        attrs: dict[str, Any] = {"apart": True} if apart else {}
        product = t.emit_nodes(dense.bias, product.id, t.full(bias), **attrs)
    return t.view(product, (*x.shape[:-1], weight.shape[0]))


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


MEAN = 1
"""torch's number for the reduction "mean"."""


def cross_entropy(
    t: Tracer,
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
) -> Tensor:
    if weight is not None or reduction != MEAN or len(logits.shape) != 2:
        raise refuse("class weights, a sum or more axes", "use the mean over [rows, classes]")
    if targets.shape != logits.shape[:1]:
        raise refuse(f"targets {list(targets.shape)}", "give class numbers, one per row")
    attrs: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    rows = t.shaped(targets, (size(targets.shape),))
    return t.emit_nodes(token_cross_entropy, t.rows(logits), rows, **attrs)


def squared_error(t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN) -> Tensor:
    if reduction != MEAN:
        raise refuse("a sum", "use the mean")
    if t.is_trained(b):
        a, b = b, a
    if t.is_trained(b):
        raise refuse("values to be met that depend on parameters", "write the mean of the square")
    return t.emit(mean_squared_error, a, b)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "linear": linear,
        "embedding": embedding,
        "cross_entropy_loss": cross_entropy,
        "mse_loss": squared_error,
    }
)
