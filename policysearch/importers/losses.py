"""Import rules: losses that a module computes itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import size
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops.loss import IGNORED, mean_squared_error, token_cross_entropy

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
    {"cross_entropy_loss": cross_entropy, "mse_loss": squared_error}
)
