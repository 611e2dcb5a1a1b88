"""Places where a mask of the step is true, as `torch.where(mask)` lists them, one list an axis.

Mixtures of experts choose the tokens of an expert so. As with x[mask] (`selections.py`), every
place is kept, and only those that the mask chooses count. What is added or written at places of
one axis comes from each place of the others, one after the other, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from policysearch.graph import Shape, size
from policysearch.importers.elementwise import add
from policysearch.importers.indexing import KEEP_ALL, everywhere, same, selected, where_chosen
from policysearch.importers.shapes import expand, permute, select, slice_of
from policysearch.importers.tracer import Rule, Selection, Tensor, Tracer, refuse
from policysearch.ops import masks
from policysearch.ops.comparison import compare
from policysearch.ops.draws import like
from policysearch.ops.indexing import take_slice
from policysearch.ops.routing import arange

MOST = 64
"""So many places of other axes are gone through one by one."""

SINGLE = ("squeeze", "select", "flatten", "view", "reshape")
"""What leaves of nonzero() of one axis, [n, 1], its one list."""


@dataclass(frozen=True)
class Places(Selection):
    """Of a mask of the shape `of`, the places along one of its axes: `rows` [n], or [n, 1]."""

    of: Shape
    axis: int

    @property
    def lead(self) -> int:
        """How many of the others there are for each."""
        return size(self.of) // self.of[self.axis]


def listed(t: Tracer, mask: Tensor) -> tuple[Places, ...]:
    """Return where a mask is true, or what is not 0, as `torch.where` of it alone does."""
    if not t.is_mask(mask):
        mask = t.whole(compare, mask, t.number(0.0), relation="not_equal")
    count, of = size(mask.shape), mask.shape
    lists = []
    for axis, extent in enumerate(of):
        counted = t.whole(arange, t.number(0.0), range=(0, extent, 1))
        along = t.view(counted, (1,) * axis + (extent,) + (1,) * (len(of) - axis - 1))
        rows = t.view(expand(t, along, of), (count,))
        lists.append(Places(rows, t.view(mask, (count,)), of, axis))
    return tuple(lists)


def nonzero(t: Tracer, mask: Tensor) -> Places:
    if len(mask.shape) != 1:
        raise refuse("places of several axes in one tensor", "expected torch.where(mask)")
    (places,) = listed(t, mask)
    return replace(places, rows=t.view(places.rows, (*mask.shape, 1)))


def places_in(arguments: Any) -> list[Places]:
    """Return the places among the arguments of a call, or in their lists."""
    if isinstance(arguments, Places):
        return [arguments]
    parts = arguments if isinstance(arguments, list | tuple) else ()
    return [places for part in parts for places in places_in(part)]


def place_rule(name: str) -> Rule:
    """Return the rule of an op that reads places."""
    name = name.removesuffix("_")
    if name not in OWN:
        raise refuse("as many places as a mask chooses", KEEP_ALL)
    return OWN[name]


def _single(t: Tracer, x: Places, *_: Any) -> Places:
    return replace(x, rows=t.view(x.rows, x.rows.shape[:1]))


def _index(t: Tracer, x: Any, indices: Sequence[Any]) -> Selection:
    if indices[0] is None and x.shape[0] == 1:
        return _index(t, select(t, x, 0, 0), indices[1:])  # of one row that [None] made
    lists = places_in(list(indices))
    alike = isinstance(x, Tensor) and len(lists) == len(indices) and lists[0].rows.shape[1:] == ()
    if not alike or not all(same(t, y.mask.id, lists[0].mask.id) for y in lists):
        raise refuse("places beside other indices", KEEP_ALL)
    if len(lists) == 1:
        return _rows_at(t, x, lists[0])
    axes, of = [y.axis for y in lists], lists[0].of
    if sorted(axes) != [*range(len(of))] or x.shape[: len(of)] != tuple(of[i] for i in axes):
        raise refuse("places of some axes", KEEP_ALL)
    order = [axes.index(axis) for axis in range(len(of))]
    turned = permute(t, x, [*order, *range(len(of), len(x.shape))])
    return selected(t, turned, t.view(lists[0].mask, of))


def _rows_at(t: Tracer, x: Tensor, places: Places) -> Selection:
    """Return the row of x for each place."""
    extent, rest = places.of[places.axis], x.shape[1:]
    _check_rows(x, places)
    lead = [extent if axis == places.axis else 1 for axis in range(len(places.of))]
    rows = expand(t, t.view(x, (*lead, *rest)), (*places.of, *rest))
    return selected(t, t.view(rows, (size(places.of), *rest)), places.mask)


def _check_rows(x: Any, places: Any) -> None:
    """Raise InputError where these are no places of the rows of x."""
    if not (isinstance(x, Tensor) and isinstance(places, Places)):
        raise refuse("places as values, or of a selection", KEEP_ALL)
    if x.shape[0] != places.of[places.axis]:
        raise refuse(f"places of {places.of[places.axis]} rows in {x.shape[0]}", KEEP_ALL)


def _index_select(t: Tracer, x: Tensor, dim: int, places: Places) -> Selection:
    if dim % len(x.shape):
        raise refuse("places along another axis than the first", KEEP_ALL)
    return _index(t, x, [places])


def _by_slot(t: Tracer, places: Places, values: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a mask of the rows along the axis, and their values, for each place of the others."""
    if not isinstance(values, Selection) or not same(t, values.mask.id, places.mask.id):
        raise refuse("values that are not of the same places", KEEP_ALL)
    if places.lead > MOST:
        raise refuse(f"{places.lead} places for each row", KEEP_ALL)
    rest = values.rows.shape[1:]
    order = [axis for axis in range(len(places.of)) if axis != places.axis] + [places.axis]
    shape = (places.lead, places.of[places.axis])
    behind = [len(order) + i for i in range(len(rest))]
    turned = permute(t, t.view(values.rows, (*places.of, *rest)), [*order, *behind])
    rows = t.view(turned, (*shape, *rest))
    mask = t.view(permute(t, t.view(places.mask, places.of), order), shape)
    for slot in range(places.lead):
        where = slice_of(mask, 0, slot, slot + 1, 1)
        chosen = mask if where is None else t.whole(take_slice, mask, **where)
        yield t.view(chosen, shape[1:]), select(t, rows, 0, slot)


def _index_add(
    t: Tracer, x: Tensor, dim: int, places: Places, values: Any, alpha: float = 1
) -> Tensor:
    if dim % len(x.shape):
        raise refuse("places along another axis than the first", KEEP_ALL)
    _check_rows(x, places)
    for mask, rows in _by_slot(t, places, values):
        attrs: dict[str, Any] = {"value": 0.0, "outside": True}
        x = add(t, x, t.emit(masks.masked_fill, rows, everywhere(t, mask, rows), **attrs), alpha)
    return x


def _index_put(
    t: Tracer, x: Tensor, indices: Sequence[Any], values: Any, accumulate: bool = False, *_: Any
) -> Tensor:
    if len(indices) != 1:
        raise refuse("places of several axes", KEEP_ALL)
    (places,) = indices
    _check_rows(x, places)
    if accumulate:
        return _index_add(t, x, 0, places, values)
    for mask, rows in _by_slot(t, places, values):
        kept = rows if t.is_whole(rows) else t.emit(like, x, rows)
        x = where_chosen(t, mask, kept, x)
    return x


OWN: Mapping[str, Rule] = MappingProxyType(
    {
        "getitem": lambda t, found, place: found[place],
        "index": _index,
        "index_select": _index_select,
        "index_add": _index_add,
        "index_put": _index_put,
        **dict.fromkeys(SINGLE, _single),
    }
)

RULES: Mapping[str, Rule] = MappingProxyType({"nonzero": nonzero, "nonzero_numpy": listed})
