"""Import rules: losses of margins between scores, of distances and of cosines."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.importers.elementwise import (
    add,
    clamp,
    divide,
    multiply,
    negative,
    pair,
    subtract,
)
from policysearch.importers.losses import MEAN, NONE, entered, of_pairs, reduced
from policysearch.importers.reductions import distance, over
from policysearch.importers.tracer import Rule, Tensor, Tracer
from policysearch.ops import extrema, margin_losses, multi_margin_losses
from policysearch.ops.exponentials import sqrt
from policysearch.ops.reduce import sum_over

LEAST_SQUARE = 1e-12
"""What torch adds to the squares of lengths in a loss of cosines."""

_smaller = pair(extrema.minimum)


def margin_ranking(
    t: Tracer, a: Tensor, b: Tensor, y: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    """By how much a is not larger than b by the margin, where y is 1; smaller, where it is -1."""
    start = len(t.b.nodes)
    losses = add(t, multiply(t, negative(t, y), subtract(t, a, b)), float(margin))
    losses = reduced(t, clamp(t, losses, 0.0), reduction)
    t.list_under(margin_losses.hinge_embedding.name, start)
    return losses


def cosine_embedding(
    t: Tracer, a: Tensor, b: Tensor, y: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    start = len(t.b.nodes)
    a, b = entered(t, a, b)
    squares = (add(t, over(t, sum_over, multiply(t, x, x), -1), LEAST_SQUARE) for x in (a, b))
    length = t.pointwise(sqrt, multiply(t, *squares))
    cosines = divide(t, over(t, sum_over, multiply(t, a, b), -1), length)
    op = margin_losses.cosine_embedding
    result = of_pairs(t, op, cosines, y, reduction, margin=float(margin))
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
    anchor, near, far = entered(t, anchor, near, far)
    to_near, to_far = (distance(t, anchor, x, p, epsilon) for x in (near, far))
    if swap:
        to_far = _smaller(t, to_far, distance(t, near, far, p, epsilon))
    losses = clamp(t, subtract(t, add(t, to_near, float(margin)), to_far), 0.0)
    losses = reduced(t, losses, reduction)
    t.list_under(margin_losses.hinge_embedding.name, start)
    return losses


def multi_margin(
    t: Tracer,
    scores: Tensor,
    classes: Tensor,
    p: float = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """By how much the score of a row's class does not lead the others by the margin, to the p."""
    rows = t.rows(scores)
    targets = t.shaped(classes, t.b.shape(rows)[:1])
    nodes = (rows, targets) if weight is None else (rows, targets, t.full(weight))
    return _by_row(t, nodes, classes, reduction, power=int(p), margin=float(margin))


def multilabel_margin(t: Tracer, scores: Tensor, classes: Tensor, reduction: int = MEAN) -> Tensor:
    """The same of several classes a row, which are listed up to the first number below 0."""
    rows = t.rows(scores)
    return _by_row(t, (rows, t.shaped(classes, t.b.shape(rows))), classes, reduction)


def _by_row(
    t: Tracer, nodes: tuple[int, ...], classes: Tensor, reduction: int, **attrs: Any
) -> Tensor:
    start, op = len(t.b.nodes), multi_margin_losses.multi_margin
    losses = t.emit_nodes(op, *nodes, **attrs)
    result = t.view(losses, classes.shape[:1]) if reduction == NONE else losses
    result = reduced(t, result, reduction)
    t.list_under(op.name, start)
    return result


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "margin_ranking_loss": margin_ranking,
        "cosine_embedding_loss": cosine_embedding,
        "triplet_margin_loss": triplet_margin,
        "multi_margin_loss": multi_margin,
        "multilabel_margin_loss": multilabel_margin,
    }
)
