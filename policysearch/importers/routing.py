"""Import rules: whole numbers that come of comparing values, and what is chosen by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

from policysearch.graph import size
from policysearch.importers.attention import masked_fill
from policysearch.importers.elementwise import divide, multiply
from policysearch.importers.indexing import gathered
from policysearch.importers.layers import embedding
from policysearch.importers.shapes import cat, expand, part, squeeze, unsqueeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import extrema, routing
from policysearch.ops.comparison import compare
from policysearch.ops.reduce import mean, sum_over


def _ranked_values(t: Tracer, x: Tensor, dim: int, **attrs: Any) -> tuple[Tensor, Tensor]:
    """Return the values chosen by their rank and their places; the gradient goes to these."""
    places = t.whole(routing.ranked, x, axis=dim % len(x.shape), **attrs)
    return gathered(t, x, dim, places), places


def topk(
    t: Tracer, x: Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    return _ranked_values(t, x, dim, count=k, descending=bool(largest))


def sort(
    t: Tracer, x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> tuple[Tensor, Tensor]:
    return _ranked_values(t, x, dim, descending=bool(descending))


def argsort(
    t: Tracer, x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    return t.whole(routing.ranked, x, axis=dim % len(x.shape), descending=bool(descending))


def kth_value(
    t: Tracer, x: Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    value, place = _ranked_values(t, x, dim, first=k - 1, count=1)
    return (value, place) if keepdim else (squeeze(t, value, dim), squeeze(t, place, dim))


def extreme_place(descending: bool) -> Rule:
    """Return the rule of argmax or argmin."""

    def rule(t: Tracer, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        rows = t.view(x, (size(x.shape),)) if dim is None else x
        axis = (dim or 0) % len(rows.shape)
        place = t.whole(routing.ranked, rows, axis=axis, count=1, descending=descending)
        if dim is None:
            return t.view(place, (1,) * len(x.shape) if keepdim else ())
        return place if keepdim else squeeze(t, place, axis)

    return rule


def one_hot(t: Tracer, numbers: Tensor, num_classes: int) -> Tensor:
    return t.whole(routing.one_hot, numbers, classes=num_classes)


def bucketize(
    t: Tracer, x: Tensor, boundaries: Tensor, right: bool = False, side: str | None = None, **_: Any
) -> Tensor:
    right = right or side == "right"
    if not isinstance(x, Tensor):
        raise refuse(f"the place of {x}", "give a tensor of values")
    if len(boundaries.shape) == 1:
        return t.whole(routing.searchsorted, boundaries, x, right=right)
    # rows of their own: how many of each are below, or not above
    rows, values = unsqueeze(t, boundaries, -2), unsqueeze(t, x, -1)
    below = t.whole(compare, rows, values, relation="less_equal" if right else "less")
    return t.whole(sum_over, below, axes=(len(below.shape) - 1,))


def arange(t: Tracer, *bounds: Any, **_: Any) -> Tensor:
    if not all(isinstance(bound, int) for bound in bounds):
        raise refuse(f"numbers {list(bounds)}", "use whole ones")
    counted = range(*bounds)
    return t.whole(routing.arange, t.number(0.0), range=(counted.start, counted.stop, counted.step))


def eye(t: Tracer, rows: int, columns: int = 0, **_: Any) -> Tensor:
    return t.whole(routing.eye, t.number(1.0), shape=(rows, columns or rows))


def diagonal_scatter(
    t: Tracer, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """Put values on the diagonals of square matrices, the last two axes."""
    axes, (rows, columns) = [dim1 % len(x.shape), dim2 % len(x.shape)], x.shape[-2:]
    if offset or axes != [len(x.shape) - 2, len(x.shape) - 1] or rows != columns:
        raise refuse("values on a diagonal", "write them by a mask: torch.where(mask, ..., x)")
    values = expand(t, unsqueeze(t, source, -1), x.shape)
    return masked_fill(t, x, expand(t, eye(t, rows, columns), x.shape), values)


def fill_diagonal(t: Tracer, x: Tensor, value: float, wrap: bool = False) -> Tensor:
    """Fill the diagonal of a matrix."""
    if len(x.shape) != 2 or (wrap and x.shape[0] > x.shape[1]):
        raise refuse("a diagonal of more than a matrix", "fill it by a mask: x.masked_fill(...)")
    return masked_fill(t, x, eye(t, *x.shape), value)


MODES = ("sum", "mean", "max")
"""Of `embedding_bag`, as torch numbers them."""


def embedding_bag(
    t: Tracer,
    table: Tensor,
    numbers: Tensor,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
    bags: tuple[int, ...] = (),
) -> tuple[Tensor, ...]:
    """Rows that are looked up, and their sum, mean or maximum over each of the `bags`.

    These are sizes, one where it is that of all. Numbers that are `padding_idx` do not count.
    """
    rows = embedding(t, table, numbers)
    if weights is not None:
        rows = multiply(t, rows, t.view(weights, (*weights.shape, 1)))
    kept = None if padding_idx is None or padding_idx < 0 else _differs(t, numbers, padding_idx)
    if len(bags) == 1:
        shape = (size(numbers.shape) // bags[0], bags[0])
        rows = t.view(rows, (*shape, table.shape[1]))
        result = _of_bags(t, MODES[mode], rows, None if kept is None else t.view(kept, shape))
        return (result,) * 4
    parts = []
    for first, end in pairwise((0, *accumulate(bags))):
        own = unsqueeze(t, part(t, rows, 0, first, end), 0)
        left = None if kept is None else unsqueeze(t, part(t, kept, 0, first, end), 0)
        parts.append(_of_bags(t, MODES[mode], own, left))
    return (cat(t, parts, 0),) * 4


def _differs(t: Tracer, numbers: Tensor, number: int) -> Tensor:
    return t.whole(compare, numbers, relation="not_equal", number=float(number))


def _of_bags(t: Tracer, mode: str, rows: Tensor, kept: Tensor | None) -> Tensor:
    """Return the sum, mean or maximum of rows [bags, size, width], of those that are `kept`."""
    counts: Tensor | None = None
    if not rows.shape[1]:
        return Tensor(t.filled(0.0, (rows.shape[0], rows.shape[2])), (rows.shape[0], rows.shape[2]))
    if kept is not None:
        empty = -math.inf if mode == "max" else 0.0
        rows = masked_fill(t, rows, t.view(kept, (*kept.shape, 1)), empty, outside=True)
        counts = t.whole(sum_over, kept, axes=(1,))
    if mode == "max":
        result = squeeze(t, _ranked_values(t, rows, 1, count=1, descending=True)[0], 1)
        if counts is not None:
            result = masked_fill(t, result, t.view(counts, (rows.shape[0], 1)), 0.0, outside=True)
        return result
    if mode == "mean" and counts is None:
        return t.emit(mean, rows, source="embedding", axes=(1,))
    result = t.emit(sum_over, rows, source="embedding", axes=(1,))
    if mode == "sum" or counts is None:
        return result
    least = t.whole(extrema.clamp, counts, minimum=1.0, maximum=math.inf)
    return divide(t, result, t.view(least, (rows.shape[0], 1)))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "fill_diagonal": fill_diagonal,
        "diagonal_scatter": diagonal_scatter,
        "topk": topk,
        "sort": sort,
        "argsort": argsort,
        "kthvalue": kth_value,
        "argmax": extreme_place(True),
        "argmin": extreme_place(False),
        "one_hot": one_hot,
        "bucketize": bucketize,
        "searchsorted": lambda t, boundaries, x, **options: bucketize(t, x, boundaries, **options),
        "arange": arange,
        "eye": eye,
        "embedding_bag": embedding_bag,
    }
)
