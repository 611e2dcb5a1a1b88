"""Import rules: losses of classes, by their numbers or their probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import size
from policysearch.importers.elementwise import add, divide, multiply, negative
from policysearch.importers.losses import MEAN, NONE, SUM, reduced
from policysearch.importers.shapes import permute
from policysearch.importers.tracer import Rule, Tensor, Tracer
from policysearch.ops import class_losses
from policysearch.ops.loss import IGNORED, token_cross_entropy
from policysearch.ops.reduce import sum_over
from policysearch.ops.softmax import log_softmax


def _rows(t: Tracer, x: Tensor) -> int:
    """Return [rows, classes] of logits whose classes are along axis 1, or 0 of one example."""
    if len(x.shape) > 2:
        x = permute(t, x, (0, *range(2, len(x.shape)), 1))
    return t.shaped(x, (size(x.shape) // x.shape[-1], x.shape[-1]))


def _weights(t: Tracer, weight: Tensor | None, classes: int) -> int:
    return t.filled(1.0, (classes,)) if weight is None else t.full(weight)


def likelihood(
    t: Tracer,
    log_p: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Minus the log probability of each row's class, over axis 1, weighted by class."""
    start = len(t.b.nodes)
    rows = _rows(t, log_p)
    count, classes = t.b.shape(rows)
    flat, weights = t.shaped(targets, (count,)), _weights(t, weight, classes)
    attrs: dict[str, Any] = {"ignore_index": ignore_index}
    smoothed = {**attrs, "label_smoothing": label_smoothing} if label_smoothing else attrs
    op = class_losses.negative_log_likelihood
    losses = t.emit_nodes(op, rows, flat, weights, **smoothed)
    result = t.view(losses, targets.shape) if reduction == NONE else reduced(t, losses, SUM)
    if reduction == MEAN:
        counted = t.emit_nodes(class_losses.row_weights, flat, weights, **attrs)
        result = divide(t, result, reduced(t, counted, SUM))
    t.list_under(op.name, start)
    return result


def cross_entropy(
    t: Tracer,
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = IGNORED,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Of class numbers or, where they have the logits' shape, of probabilities."""
    if targets.shape == logits.shape and not t.is_whole(targets):
        return _of_shares(t, logits, targets, weight, reduction, label_smoothing)
    if weight is None and reduction == MEAN:
        rows = _rows(t, logits)
        attrs: dict[str, Any] = {
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
        }
        flat = t.shaped(targets, (t.b.shape(rows)[0],))
        return t.emit_nodes(token_cross_entropy, rows, flat, **attrs)
    start = len(t.b.nodes)
    log_p = _log_p(t, logits)
    losses = likelihood(t, log_p, targets, weight, reduction, ignore_index, label_smoothing)
    t.list_under(token_cross_entropy.name, start)
    return losses


def _log_p(t: Tracer, logits: Tensor) -> Tensor:
    """Return the logarithm of the softmax along the axis of the classes."""
    rows = t.emit_nodes(log_softmax, _rows(t, logits))
    axis = 1 if len(logits.shape) > 1 else 0
    others = [extent for place, extent in enumerate(logits.shape) if place != axis]
    last = t.view(rows, (*others, logits.shape[axis]))
    order = (0, len(others), *range(1, len(others))) if axis else (0,)
    return permute(t, last, order)


def _of_shares(
    t: Tracer,
    logits: Tensor,
    shares: Tensor,
    weight: Tensor | None,
    reduction: int,
    label_smoothing: float,
) -> Tensor:
    """-sum of p log q over the classes, of probabilities p."""
    start = len(t.b.nodes)
    classes = logits.shape[1] if len(logits.shape) > 1 else logits.shape[0]
    if label_smoothing:
        even = label_smoothing / classes
        shares = add(t, multiply(t, shares, 1.0 - label_smoothing), even)
    log_p = _log_p(t, logits)
    if weight is not None:
        along = (classes, *(1,) * (len(logits.shape) - 2)) if len(logits.shape) > 1 else (classes,)
        shares = multiply(t, shares, t.view(weight, along))
    products = multiply(t, log_p, shares)
    axis = 1 if len(logits.shape) > 1 else 0
    losses = negative(t, t.emit(sum_over, products, axes=(axis,), keepdim=False))
    if reduction == MEAN:
        count = size(losses.shape)
        losses = multiply(t, reduced(t, losses, SUM), 1.0 / count)
    elif reduction == SUM:
        losses = reduced(t, losses, SUM)
    t.list_under(token_cross_entropy.name, start)
    return losses


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "cross_entropy_loss": cross_entropy,
        **dict.fromkeys(("nll_loss", "nll_loss2d", "nll_loss_nd"), likelihood),
    }
)
