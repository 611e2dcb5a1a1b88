"""Import rules: losses, each with the reduction over its elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op
from policysearch.importers.elementwise import (
    add,
    multiply,
    subtract,
)
from policysearch.importers.shapes import broadcast_tensors
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import ctc_loss, margin_losses, paired_losses, probability_losses
from policysearch.ops.elementwise import scale
from policysearch.ops.loss import mean_squared_error
from policysearch.ops.reduce import mean, sum_over
from policysearch.ops.softplus import log_sigmoid

NONE, MEAN, SUM = range(3)
"""torch's numbers for the reductions."""


def reduced(t: Tracer, losses: Tensor, reduction: int) -> Tensor:
    """Return the losses, their mean or their sum."""
    if reduction == NONE:
        return losses
    op = mean if reduction == MEAN else sum_over
    return t.emit(op, losses, axes=tuple(range(len(losses.shape))), keepdim=False)


def entered(t: Tracer, *operands: Tensor) -> Iterator[Tensor]:
    """Yield operands that a loss reads more than once, each by a node that alone is cast.

    Autocast casts an operand of one call once: its gradients are added before they are rounded.
    """
    return (t.pointwise(scale, x, factor=1.0) for x in operands)


def of_pairs(
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
    return of_pairs(t, paired_losses.squared_error, a, b, reduction)


def absolute_error(t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN) -> Tensor:
    return of_pairs(t, paired_losses.absolute_error, a, b, reduction)


def smooth_absolute_error(
    t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN, beta: float = 1.0
) -> Tensor:
    return of_pairs(t, paired_losses.smooth_absolute_error, a, b, reduction, width=float(beta))


def huber(t: Tracer, a: Tensor, b: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    return of_pairs(t, paired_losses.huber, a, b, reduction, width=float(delta))


def binary(
    t: Tracer, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    return of_pairs(t, probability_losses.binary_cross_entropy, x, y, reduction, weight)


def binary_of_logits(
    t: Tracer,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Weighted by `weight`, and by `pos_weight` where the target is 1."""
    op = probability_losses.binary_cross_entropy_with_logits
    if pos_weight is None:
        return of_pairs(t, op, x, y, reduction, weight)
    # (1 - y) x + (1 + (w - 1) y) log(1 + exp(-x)), torch's own pieces of it (`Loss.cpp`)
    start = len(t.b.nodes)
    x, y = entered(t, x, y)
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
    return of_pairs(t, probability_losses.kl_divergence, x, y, reduction, **attrs)


def soft_margin(t: Tracer, x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    return of_pairs(t, probability_losses.soft_margin, x, y, reduction)


def poisson(
    t: Tracer, x: Tensor, y: Tensor, log_input: bool, full: bool, epsilon: float, reduction: int
) -> Tensor:
    attrs = {"log_input": log_input, "full": full, "epsilon": epsilon}
    return of_pairs(t, probability_losses.poisson, x, y, reduction, **attrs)


def hinge_embedding(
    t: Tracer, x: Tensor, y: Tensor, margin: float = 1.0, reduction: int = MEAN
) -> Tensor:
    return of_pairs(t, margin_losses.hinge_embedding, x, y, reduction, margin=float(margin))


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


RULES: Mapping[str, Rule] = MappingProxyType(
    {
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
        "ctc_loss": ctc,
    }
)
