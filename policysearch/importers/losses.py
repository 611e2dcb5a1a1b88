"""Import rules: losses, each with the reduction over its elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op, size
from policysearch.importers.elementwise import (
    add,
    clamp,
    divide,
    multiply,
    negative,
    pair,
    subtract,
)
from policysearch.importers.reductions import distance, over, vector_norm
from policysearch.importers.shapes import broadcast_tensors, permute
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import class_losses, ctc_loss, extrema, paired_losses
from policysearch.ops.elementwise import scale
from policysearch.ops.exponentials import sqrt
from policysearch.ops.loss import IGNORED, mean_squared_error, token_cross_entropy
from policysearch.ops.reduce import mean, sum_over
from policysearch.ops.softmax import log_softmax
from policysearch.ops.softplus import log_sigmoid

NONE, MEAN, SUM = range(3)
"""torch's numbers for the reductions."""

LEAST_SQUARE = 1e-12
"""What torch adds to the squares of lengths in a loss of cosines."""


def reduced(t: Tracer, losses: Tensor, reduction: int) -> Tensor:
    """Return the losses, their mean or their sum."""
    if reduction == NONE:
        return losses
    op = mean if reduction == MEAN else sum_over
    return t.emit(op, losses, axes=tuple(range(len(losses.shape))), keepdim=False)


def _entered(t: Tracer, *operands: Tensor) -> Iterator[Tensor]:
    """Yield operands that a loss reads more than once, each by a node that alone is cast.

    Autocast casts an operand of one call once: its gradients are added before they are rounded.
    """
    return (t.pointwise(scale, x, factor=1.0) for x in operands)


def _of_pairs(
    t: Tracer, op: Op, x: Tensor, y: Tensor, reduction: int, weight: Any = None, **attrs: Any
) -> Tensor:
    """Emit a loss of each element, by its weight, and the reduction, all in the list of `op`."""
    start = len(t.b.nodes)
    x, y = broadcast_tensors(t, (x, y))
    losses = t.emit(op, x, y, **attrs)
    losses = losses if weight is None else multiply(t, losses, weight)
    result = reduced(t, losses, reduction)
    t.list_under(op.name, start)
    return result


def squared_error(t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN) -> Tensor:
    if reduction == MEAN and a.shape == b.shape and not (t.is_trained(a) and t.is_trained(b)):
        pair = (b, a) if t.is_trained(b) else (a, b)
        return t.emit(mean_squared_error, *pair)
    return _of_pairs(t, paired_losses.squared_error, a, b, reduction)


def absolute_error(t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN) -> Tensor:
    return _of_pairs(t, paired_losses.absolute_error, a, b, reduction)


def smooth_absolute_error(
    t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN, beta: float = 1.0
) -> Tensor:
    return _of_pairs(t, paired_losses.smooth_absolute_error, a, b, reduction, width=float(beta))


def huber(t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    return _of_pairs(t, paired_losses.huber, a, b, reduction, width=float(delta))


def binary(
    t: Tracer, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    return _of_pairs(t, paired_losses.binary_cross_entropy, x, y, reduction, weight)


def binary_of_logits(
    t: Tracer,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Weighted by `weight`, and by `pos_weight` where the target is 1."""
    op = paired_losses.binary_cross_entropy_with_logits
    if pos_weight is None:
        return _of_pairs(t, op, x, y, reduction, weight)
    # (1 - y) x + (1 + (w - 1) y) log(1 + exp(-x)), torch's own pieces of it (`Loss.cpp`)
    start = len(t.b.nodes)
    x, y = _entered(t, x, y)
    factor = add(t, multiply(t, y, add(t, pos_weight, -1.0)), 1.0)
    soft = t.pointwise(log_sigmoid, x)
    losses = subtract(t, multiply(t, subtract(t, 1.0, y), x), multiply(t, factor, soft))
    losses = losses if weight is None else multiply(t, losses, weight)
    result = reduced(t, losses, reduction)
    t.list_under(op.name, start)
    return result


def divergence(
    t: Tracer, x: Tensor, y: Tensor, reduction: int = MEAN, log_target: bool = False
) -> Tensor:
    attrs = {"log_target": True} if log_target else {}
    return _of_pairs(t, paired_losses.kl_divergence, x, y, reduction, **attrs)


def soft_margin(t: Tracer, x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    return _of_pairs(t, paired_losses.soft_margin, x, y, reduction)


def poisson(
    t: Tracer, x: Tensor, y: Tensor, log_input: bool, full: bool, epsilon: float, reduction: int
) -> Tensor:
    attrs = {"log_input": log_input, "full": full, "epsilon": epsilon}
    return _of_pairs(t, paired_losses.poisson, x, y, reduction, **attrs)


def hinge_embedding(
    t: Tracer, x: Tensor, y: Tensor, margin: float = 1.0, reduction: int = MEAN
) -> Tensor:
    return _of_pairs(t, paired_losses.hinge_embedding, x, y, reduction, margin=float(margin))


_smaller = pair(extrema.minimum)


def margin_ranking(
    t: Tracer, a: Tensor, b: Tensor, y: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    """By how much a is not larger than b by the margin, where y is 1; smaller, where it is -1."""
    start = len(t.b.nodes)
    losses = add(t, multiply(t, negative(t, y), subtract(t, a, b)), float(margin))
    losses = reduced(t, clamp(t, losses, 0.0), reduction)
    t.list_under(paired_losses.hinge_embedding.name, start)
    return losses


def cosine_similarity(
    t: Tracer, a: Tensor, b: Tensor, dim: int = 1, epsilon: float = 1e-8
) -> Tensor:
    """The sum of products of both over their lengths, which are no less than epsilon."""
    start = len(t.b.nodes)
    a, b = _entered(t, *broadcast_tensors(t, (a, b)))
    axis = dim % len(a.shape)
    lengths = (clamp(t, vector_norm(t, x, 2, axis, True), epsilon) for x in (a, b))
    units = (divide(t, x, length) for x, length in zip((a, b), lengths, strict=True))
    result = over(t, sum_over, multiply(t, *units), axis)
    t.list_under(paired_losses.cosine_embedding.name, start)
    return result


def cosine_embedding(
    t: Tracer, a: Tensor, b: Tensor, y: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    start = len(t.b.nodes)
    a, b = _entered(t, a, b)
    squares = (add(t, over(t, sum_over, multiply(t, x, x), -1), LEAST_SQUARE) for x in (a, b))
    length = t.pointwise(sqrt, multiply(t, *squares))
    cosines = divide(t, over(t, sum_over, multiply(t, a, b), -1), length)
    op = paired_losses.cosine_embedding
    result = _of_pairs(t, op, cosines, y, reduction, margin=float(margin))
    t.list_under(op.name, start)
    return result


def triplet_margin(
    t: Tracer,
    anchor: Tensor,
    near: Tensor,
    far: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    epsilon: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> Tensor:
    """By how much the far one is not farther than the near one and the margin."""
    start = len(t.b.nodes)
    anchor, near, far = _entered(t, anchor, near, far)
    to_near, to_far = (distance(t, anchor, x, p, epsilon) for x in (near, far))
    if swap:
        to_far = _smaller(t, to_far, distance(t, near, far, p, epsilon))
    losses = clamp(t, subtract(t, add(t, to_near, float(margin)), to_far), 0.0)
    losses = reduced(t, losses, reduction)
    t.list_under(paired_losses.hinge_embedding.name, start)
    return losses


def ctc(
    t: Tracer,
    log_p: Tensor,
    targets: Tensor,
    steps: Any,
    labels: Any,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    if not (isinstance(steps, Tensor) and isinstance(labels, Tensor)):
        raise refuse("lengths as numbers", "use tensors: torch.full((len(x),), length)")
    if len(log_p.shape) != 3:
        raise refuse(f"log probabilities {list(log_p.shape)}", "use [time, batch, classes]")
    op = ctc_loss.ctc_loss
    attrs: dict[str, Any] = {ctc_loss.NORMAL: True, "blank": blank, "zero_infinity": zero_infinity}
    losses = t.emit(op, log_p, targets, steps, labels, **attrs)
    start = len(t.b.nodes)
    if reduction == MEAN:
        losses = t.emit(ctc_loss.per_label, losses, labels)
    losses = reduced(t, losses, reduction)
    t.list_under(op.name, start)
    return losses


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
        "mse_loss": squared_error,
        "l1_loss": absolute_error,
        "smooth_l1_loss": smooth_absolute_error,
        "huber_loss": huber,
        "binary_cross_entropy": binary,
        "binary_cross_entropy_with_logits": binary_of_logits,
        "kl_div": divergence,
        "soft_margin_loss": soft_margin,
        "poisson_nll_loss": poisson,
        "hinge_embedding_loss": hinge_embedding,
        "margin_ranking_loss": margin_ranking,
        "cosine_embedding_loss": cosine_embedding,
        "cosine_similarity": cosine_similarity,
        "triplet_margin_loss": triplet_margin,
        "ctc_loss": ctc,
    }
)
