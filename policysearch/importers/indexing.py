"""Import rules: values taken from places that numbers name, written or added there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import size
from policysearch.importers.elementwise import divide, multiply
from policysearch.importers.shapes import expand, slice_of, unsqueeze
from policysearch.importers.tracer import Rule, Selection, Tensor, Tracer, refuse
from policysearch.ops import extrema, extremes, gather, indexing, masks
from policysearch.ops import scatter as scatter_ops
from policysearch.ops.draws import like

Indices = Sequence[Tensor | None]

KEEP_ALL = "keep all rows and multiply by the mask, or choose by torch.where"


def index(t: Tracer, x: Tensor, indices: Indices) -> Tensor:
    """x[indices]; torch adds gradients to one place one after the other, each sum rounded."""
    axes, numbers = _by_axis(t, indices)
    attrs: dict[str, Any] = {gather.STEPS: True}
    return t.emit(gather.index, x, *numbers, axes=axes, **attrs)


def _by_axis(t: Tracer, indices: Indices) -> tuple[tuple[int, ...], list[Tensor]]:
    named = [(axis, number) for axis, number in enumerate(indices) if number is not None]
    if any(t.is_mask(number) for _, number in named):
        raise refuse("a selection whose size depends on values", KEEP_ALL)
    return tuple(axis for axis, _ in named), [number for _, number in named]


def _adds_in_steps(x: Tensor, axis: int) -> dict[str, Any]:
    """Return the mark of torch's `index_add` where it rounds every sum.

    Along the first axis of rows it adds in float32 (`TensorAdvancedIndexing.cpp`).
    """
    return {} if axis == 0 and len(x.shape) > 1 else {gather.STEPS: True}


def index_select(t: Tracer, x: Tensor, dim: int, numbers: Tensor) -> Tensor:
    axis = dim % len(x.shape)
    return t.emit(gather.index, x, numbers, axes=(axis,), **_adds_in_steps(x, axis))


def gathered(t: Tracer, x: Tensor, dim: int, numbers: Tensor, *_: Any, **__: Any) -> Tensor:
    return t.emit(gather.gather, x, numbers, axis=dim % len(x.shape))


def take_along(t: Tracer, x: Tensor, numbers: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return gathered(t, t.view(x, (size(x.shape),)), 0, t.view(numbers, (size(numbers.shape),)))
    axis = dim % len(x.shape)
    shapes = [(*y.shape[:axis], 1, *y.shape[axis + 1 :]) for y in (x, numbers)]
    shape = np.broadcast_shapes(*shapes)
    x, numbers = (
        expand(t, y, (*shape[:axis], y.shape[axis], *shape[axis + 1 :])) for y in (x, numbers)
    )
    return gathered(t, x, axis, numbers)


def _values(t: Tracer, x: Tensor, value: Any) -> tuple[Tensor, Tensor]:
    """Return x and what is to be written into it, both in the format of the one that is trained."""
    if not isinstance(value, Tensor):
        return x, t.number(value)
    if value.shape and not t.is_whole(x) and t.is_trained(value) != t.is_trained(x):
        if t.is_trained(value):
            return t.emit(like, value, x), value
        return x, t.emit(like, x, value)
    return x, value


def scatter(t: Tracer, x: Tensor, dim: int, numbers: Tensor, value: Any, **options: Any) -> Tensor:
    if options:
        raise refuse(f"reduce {options.get('reduce')!r}", "use scatter_add")
    x, values = _values(t, x, value)
    return t.emit(scatter_ops.scatter, x, values, numbers, axis=dim % len(x.shape))


def scatter_add(t: Tracer, x: Tensor, dim: int, numbers: Tensor, value: Tensor) -> Tensor:
    x, values = _values(t, x, value)
    return t.emit(scatter_ops.scatter, x, values, numbers, axis=dim % len(x.shape), accumulate=True)


def scatter_reduce(
    t: Tracer,
    x: Tensor,
    dim: int,
    numbers: Tensor,
    value: Tensor,
    reduce: str,
    include_self: bool = True,
) -> Tensor:
    """Return x with the sum, mean or extreme of the values at a place; and of what was there."""
    if reduce in ("amax", "amin"):
        attrs: dict[str, Any] = {"axis": dim % len(x.shape), "alone": not include_self}
        attrs["smallest"] = reduce == "amin"
        return t.emit(scatter_ops.scatter_extreme, *_values(t, x, value), numbers, **attrs)
    if reduce not in ("sum", "mean"):
        raise refuse(f"reduce {reduce!r}", "use sum, mean, amax or amin")
    start = x if include_self else scatter(t, x, dim, numbers, 0.0)
    total = scatter_add(t, start, dim, numbers, value)
    if reduce == "sum":
        return total
    counts, ones = (Tensor(t.filled(1.0, y.shape), y.shape) for y in (x, value))
    counts = counts if include_self else Tensor(t.filled(0.0, x.shape), x.shape)
    axis: dict[str, Any] = {"axis": dim % len(x.shape), "accumulate": True}
    counts = t.whole(scatter_ops.scatter, counts, ones, numbers, **axis)
    return divide(t, total, t.whole(extrema.clamp, counts, minimum=1.0, maximum=math.inf))


def index_put(
    t: Tracer, x: Tensor, indices: Indices, value: Tensor, accumulate: bool = False, *_: Any
) -> Tensor:
    if len(indices) == 1 and indices[0] is not None and t.is_mask(indices[0]):
        return _put_by_mask(t, x, indices[0], value, accumulate)
    axes, numbers = _by_axis(t, indices)
    x, values = _values(t, x, value)
    attrs: dict[str, Any] = {"accumulate": True, gather.STEPS: True} if accumulate else {}
    return t.emit(scatter_ops.index_put, x, values, *numbers, axes=axes, **attrs)


def _put_by_mask(t: Tracer, x: Tensor, mask: Tensor, value: Tensor, accumulate: bool) -> Tensor:
    if accumulate or size(value.shape) != 1:
        raise refuse("values in a selection whose size depends on values", KEEP_ALL)
    everywhere = t.view(mask, (*mask.shape, *(1,) * (len(x.shape) - len(mask.shape))))
    return t.emit(masks.where, everywhere, t.emit(like, x, t.view(value, ())), x)


def index_add(
    t: Tracer, x: Tensor, dim: int, numbers: Tensor, value: Tensor, alpha: float = 1
) -> Tensor:
    axis = dim % len(x.shape)
    x, values = _values(t, x, multiply(t, value, alpha))
    attrs = {"axes": (axis,), "accumulate": True, **_adds_in_steps(x, axis)}
    return t.emit(scatter_ops.index_put, x, values, numbers, **attrs)


def index_copy(t: Tracer, x: Tensor, dim: int, numbers: Tensor, value: Any) -> Tensor:
    x, values = _values(t, x, value)
    return t.emit(scatter_ops.index_put, x, values, numbers, axes=(dim % len(x.shape),))


def slice_scatter(
    t: Tracer,
    x: Tensor,
    value: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    where = slice_of(x, dim, start, end, step)
    if where is None:
        return value
    x, values = _values(t, x, value)
    return t.emit(indexing.slice_put, x, values, **where)


def select_scatter(t: Tracer, x: Tensor, value: Tensor, dim: int, index: int) -> Tensor:
    place = index % x.shape[dim]
    axis = dim % len(x.shape)
    return slice_scatter(t, x, unsqueeze(t, value, axis), axis, place, place + 1)


def copied(t: Tracer, x: Tensor, value: Tensor, *_: Any) -> Tensor:
    """What is copied onto x, in the shape and the format of x."""
    if not t.is_whole(x) and not t.is_whole(value):
        value = t.emit(like, x, value)
    return expand(t, value, x.shape)


def filled(t: Tracer, x: Tensor, value: Any) -> Tensor:
    value = value if isinstance(value, Tensor) else t.number(value)
    if not t.is_whole(x) and not t.is_trained(value):
        value = t.emit(like, x, value)
    return expand(t, value, x.shape)


def extreme_so_far(*, smallest: bool) -> Rule:
    """Return the rule of a running extreme and where it is, to which its gradient goes."""

    def rule(t: Tracer, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        axis = dim % len(x.shape)
        places = t.whole(extremes.place_so_far, x, axis=axis, smallest=smallest)
        return gathered(t, x, axis, places), places

    return rule


def selected(t: Tracer, x: Tensor, mask: Tensor) -> Selection:
    """Return x[mask]; the mask has the first axes of x, or all."""
    count, rest = size(mask.shape), x.shape[len(mask.shape) :]
    rows, chosen = t.view(x, (count, *rest)), t.view(mask, (count,))
    attrs = {"axis": 0, "smallest": False, "keepdim": True}
    first = t.whole(extremes.argmax, chosen, **attrs)
    another = expand(t, index_select(t, rows, 0, first), rows.shape)
    return Selection(where_chosen(t, chosen, rows, another), chosen)


def everywhere(t: Tracer, chosen: Tensor, rows: Tensor) -> Tensor:
    return t.view(chosen, (*chosen.shape, *(1,) * (len(rows.shape) - 1)))


def where_chosen(t: Tracer, chosen: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    emit = t.whole if t.is_whole(rows) and t.is_whole(others) else t.emit
    return emit(masks.where, everywhere(t, chosen, rows), rows, others)


def same(t: Tracer, a: int, b: int) -> bool:
    """Return whether two nodes compute the same value."""
    one, other = t.b.nodes[a], t.b.nodes[b]
    if a == b or one.op.kind == "source":
        return a == b
    alike = (one.op, one.attrs, len(one.inputs)) == (other.op, other.attrs, len(other.inputs))
    return alike and all(same(t, i, j) for i, j in zip(one.inputs, other.inputs, strict=True))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "cummax": extreme_so_far(smallest=False),
        "cummin": extreme_so_far(smallest=True),
        "index": index,
        "index_select": index_select,
        "gather": gathered,
        "take_along_dim": take_along,
        "scatter": scatter,
        "scatter_add": scatter_add,
        "scatter_reduce": scatter_reduce,
        "index_put": index_put,
        "index_add": index_add,
        "index_copy": index_copy,
        "index_fill": index_copy,
        "slice_scatter": slice_scatter,
        "select_scatter": select_scatter,
        "copy": copied,
        "fill": filled,
        "zero": lambda t, x: filled(t, x, 0.0),
    }
)
