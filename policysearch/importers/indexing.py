"""Import rules: places that numbers name, and numbers that come of comparing values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import size
from policysearch.importers.elementwise import multiply
from policysearch.importers.layers import embedding
from policysearch.importers.shapes import expand, squeeze, unsqueeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import elementwise, gather, indexing, masks, routing
from policysearch.ops.draws import like
from policysearch.ops.reduce import sum_over

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
    return t.emit(gather.scatter, x, values, numbers, axis=dim % len(x.shape))


def scatter_add(t: Tracer, x: Tensor, dim: int, numbers: Tensor, value: Tensor) -> Tensor:
    x, values = _values(t, x, value)
    return t.emit(gather.scatter, x, values, numbers, axis=dim % len(x.shape), accumulate=True)


def scatter_reduce(
    t: Tracer, x: Tensor, dim: int, numbers: Tensor, value: Tensor, reduce: str, **options: Any
) -> Tensor:
    if reduce != "sum" or options:
        raise refuse(f"reduce {reduce!r}", "use scatter_add")
    return scatter_add(t, x, dim, numbers, value)


def index_put(
    t: Tracer, x: Tensor, indices: Indices, value: Tensor, accumulate: bool = False, *_: Any
) -> Tensor:
    if len(indices) == 1 and indices[0] is not None and t.is_mask(indices[0]):
        return _put_by_mask(t, x, indices[0], value, accumulate)
    axes, numbers = _by_axis(t, indices)
    x, values = _values(t, x, value)
    attrs: dict[str, Any] = {"accumulate": True, gather.STEPS: True} if accumulate else {}
    return t.emit(gather.index_put, x, values, *numbers, axes=axes, **attrs)


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
    return t.emit(gather.index_put, x, values, numbers, **attrs)


def index_copy(t: Tracer, x: Tensor, dim: int, numbers: Tensor, value: Any) -> Tensor:
    x, values = _values(t, x, value)
    return t.emit(gather.index_put, x, values, numbers, axes=(dim % len(x.shape),))


def slice_scatter(
    t: Tracer,
    x: Tensor,
    value: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    axis = dim % len(x.shape)
    first, stop, _ = slice(start, end).indices(x.shape[axis])
    if (first, stop, step) == (0, x.shape[axis], 1):
        return value
    x, values = _values(t, x, value)
    where: dict[str, Any] = {"axis": axis, "start": first, "stop": stop, "step": step}
    return t.emit(indexing.slice_put, x, values, **where)


def select_scatter(t: Tracer, x: Tensor, value: Tensor, dim: int, index: int) -> Tensor:
    place = index % x.shape[dim]
    axis = dim % len(x.shape)
    return slice_scatter(t, x, unsqueeze(t, value, axis), axis, place, place + 1)


def copied(t: Tracer, x: Tensor, value: Tensor, *_: Any) -> Tensor:
    """What is copied onto x, in the shape of x."""
    return expand(t, value, x.shape)


def filled(t: Tracer, x: Tensor, value: Any) -> Tensor:
    value = value if isinstance(value, Tensor) else t.number(value)
    if not t.is_whole(x) and not t.is_trained(value):
        value = t.emit(like, x, value)
    return expand(t, value, x.shape)


def _ranked(t: Tracer, x: Tensor, dim: int, **attrs: Any) -> tuple[Tensor, Tensor]:
    """Return the values chosen by their rank and their places; the gradient goes to these."""
    places = t.whole(routing.ranked, x, axis=dim % len(x.shape), **attrs)
    return gathered(t, x, dim, places), places


def topk(
    t: Tracer, x: Tensor, k: int, dim: int = -1, largest: bool = True, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    return _ranked(t, x, dim, count=k, descending=bool(largest))


def sort(
    t: Tracer, x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> tuple[Tensor, Tensor]:
    return _ranked(t, x, dim, descending=bool(descending))


def argsort(
    t: Tracer, x: Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> Tensor:
    return t.whole(routing.ranked, x, axis=dim % len(x.shape), descending=bool(descending))


def kth_value(
    t: Tracer, x: Tensor, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    value, place = _ranked(t, x, dim, first=k - 1, count=1)
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
    if not isinstance(x, Tensor) or len(boundaries.shape) != 1:
        raise refuse("boundaries of more axes", "use one row for all")
    return t.whole(routing.searchsorted, boundaries, x, right=right or side == "right")


def arange(t: Tracer, *bounds: Any, **_: Any) -> Tensor:
    if not all(isinstance(bound, int) for bound in bounds):
        raise refuse(f"numbers {list(bounds)}", "use whole ones")
    counted = range(*bounds)
    return t.whole(routing.arange, t.number(0.0), range=(counted.start, counted.stop, counted.step))


def eye(t: Tracer, rows: int, columns: int = 0, **_: Any) -> Tensor:
    return t.whole(routing.eye, t.number(1.0), shape=(rows, columns or rows))


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
    bag: int = 0,
) -> tuple[Tensor, ...]:
    """Rows that are looked up, and their sum, mean or maximum over `bag` of them each."""
    if padding_idx is not None and padding_idx >= 0:
        raise refuse("padding_idx in bags", "give per_sample_weights that are 0 there")
    rows = embedding(t, table, t.view(numbers, (size(numbers.shape) // bag, bag)))
    if weights is not None:
        rows = multiply(t, rows, t.view(weights, (*rows.shape[:2], 1)))
    if MODES[mode] == "max":
        result = squeeze(t, _ranked(t, rows, 1, count=1, descending=True)[0], 1)
    else:
        result = t.emit(sum_over, rows, source="embedding", axes=(1,))
    if MODES[mode] == "mean":
        result = t.pointwise(elementwise.scale, result, factor=1.0 / bag)
    return (result,) * 4


def refused(what: str, hint: str) -> Rule:
    """Return the rule of an op that is not imported, with what to do instead."""

    def rule(t: Tracer, *_: Any, **__: Any) -> Tensor:
        raise refuse(what, hint)

    return rule


RULES: Mapping[str, Rule] = MappingProxyType(
    {
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
        "embedding_renorm": refused("max_norm", "normalise the rows that are looked up"),
        "masked_scatter": refused("values in a selection by a mask", "choose by torch.where"),
        **dict.fromkeys(
            ("nonzero", "nonzero_numpy", "masked_select", "unique_consecutive", "_unique2"),
            refused("a selection whose size depends on values", KEEP_ALL),
        ),
    }
)
