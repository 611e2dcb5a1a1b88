"""Rows that a mask of the step chooses, as in x[mask]: how many they are depends on values.

All rows are kept, and only the chosen ones count where rows are added up. In place of the others
stands the first that is chosen, so that what is computed of them has no NaN and no infinity of its
own; they have no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import size
from policysearch.importers.indexing import KEEP_ALL, everywhere, same, selected, where_chosen
from policysearch.importers.losses import MEAN, NONE
from policysearch.importers.reductions import RULES as OVER_AXES
from policysearch.importers.shapes import expand, unsqueeze
from policysearch.importers.tracer import Rule, Selection, Tensor, Tracer, refuse
from policysearch.ops import masks
from policysearch.ops.draws import like
from policysearch.ops.moments import mean_of_chosen

CASTS = ("to", "_to_copy", "type_as")
BY_ROW = frozenset({"clone", "contiguous", "alias", "detach", "one_hot"})
"""Ops that compute a row of one row of each operand, besides those of each value alone."""

APART = ("glu", "prelu")
"""Ops of each value alone, but for an axis that they split or have weights along."""

WEIGHED: Mapping[str, int] = MappingProxyType(
    {"linear": 0, "matmul": 0, "mm": 0, "addmm": 1, "layer_norm": 0, "embedding": 1}
)
"""Ops of weights and rows, and the place of the rows."""

ALONG = ("softmax", "log_softmax", "squeeze", "select", "slice")
PARTS = ("chunk", "split", "split_with_sizes")
"""Ops that give several parts along an axis, which they name last."""

TOTALS = ("sum", "mean")
"""Ops that name an axis: by row, where it is another than the first."""

CLASSES: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("cross_entropy_loss", "nll_loss", "nll_loss_nd"), 4)
)
"""Losses that leave out the rows of a class, and the place of its number."""

PAIRS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), 2),
        **{"binary_cross_entropy": 3, "binary_cross_entropy_with_logits": 4, "kl_div": 2},
    }
)
"""Losses of pairs, and the place of their reduction."""

IGNORED = -100
BESIDE = "a selection beside what is none"


def is_selection(value: Any) -> bool:
    """Return whether an argument is a selection, or holds one."""
    if isinstance(value, list | tuple):
        return any(map(is_selection, value))
    return isinstance(value, Selection)


def masked_select(t: Tracer, x: Tensor, mask: Tensor) -> Selection:
    shape = np.broadcast_shapes(x.shape, mask.shape)
    return selected(t, expand(t, x, shape), expand(t, mask, shape))


def chooses(t: Tracer, name: str, arguments: Any) -> bool:
    """Return whether a call is x[mask]."""
    indices: Any = arguments[1] if name == "index" and len(arguments) > 1 else ()
    return len(indices) == 1 and isinstance(indices[0], Tensor) and t.is_mask(indices[0])


def selected_at(t: Tracer, x: Any, indices: Any) -> Selection:
    if isinstance(x, Selection):
        raise refuse("a selection of a selection", KEEP_ALL)
    return selected(t, x, indices[0])


def selection_rule(name: str, rule: Rule | None, *, pointwise: bool) -> Rule:
    """Return the rule of an op that reads a selection; `rule` is that of tensors.

    `pointwise`: that is one of each value alone.
    """
    name = name.removesuffix("_")
    if rule is not None and name in CLASSES:
        return partial(_of_classes, rule, CLASSES[name])
    if rule is not None and name in PAIRS:
        return partial(_of_pairs, rule, PAIRS[name])
    if rule is not None and name in CASTS:
        return partial(_cast, rule)
    if rule is not None and name not in APART and (pointwise or name in BY_ROW):
        return partial(_by_row, rule)
    if rule is not None and name in WEIGHED:
        return partial(_by_weights, rule, WEIGHED[name])
    if rule is not None and name == "glu":
        return lambda t, x, dim=-1: _along(rule, t, x, dim)
    if rule is not None and name in PARTS:
        return partial(_parts, rule)
    if rule is not None and name in ALONG:
        return partial(_along, rule)
    if rule is not None and name in TOTALS:
        return partial(_total, rule)
    if name in OWN:
        return OWN[name]
    raise refuse("a selection whose size depends on values", KEEP_ALL)


def _selections(value: Any) -> Iterator[Selection]:
    if isinstance(value, Selection):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _selections(part)


def _apart(t: Tracer, arguments: Any) -> tuple[Tensor, list[Any]]:
    """Return the mask of all selections among the arguments, and the arguments as rows."""
    chosen, *others = (selection.mask for selection in _selections(arguments))
    if not all(same(t, chosen.id, other.id) for other in others):
        raise refuse("selections by two masks", KEEP_ALL)
    return chosen, [x.rows if isinstance(x, Selection) else x for x in arguments]


def _by_row(rule: Rule, t: Tracer, *arguments: Any, **options: Any) -> Any:
    chosen, read = _apart(t, arguments)
    rows = [x for x, given in zip(read, arguments, strict=True) if isinstance(given, Selection)]
    axes = max(len(x.shape) for x in rows)
    others = [x for x, given in zip(read, arguments, strict=True) if x is given]
    beside = (x for x in others if isinstance(x, Tensor) and len(x.shape) >= axes)
    if len({len(x.shape) for x in rows}) > 1 or any(x.shape[0] != 1 for x in beside):
        raise refuse(BESIDE, KEEP_ALL)
    return Selection(rule(t, *read, **options), chosen)


def _cast(rule: Rule, t: Tracer, x: Any, *others: Any, **options: Any) -> Any:
    """A cast, also to the format of a value of other rows."""
    read = [y.rows if isinstance(y, Selection) else y for y in others]
    if not isinstance(x, Selection):
        return rule(t, x, *read, **options)
    return Selection(rule(t, x.rows, *read, **options), x.mask)


def _by_weights(rule: Rule, place: int, t: Tracer, *arguments: Any, **options: Any) -> Any:
    others = (*arguments[:place], *arguments[place + 1 :])
    if not is_selection(arguments[place]) or is_selection(others):
        raise refuse(BESIDE, KEEP_ALL)
    chosen, read = _apart(t, arguments)
    return Selection(rule(t, *read, **options), chosen)


def _along(rule: Rule, t: Tracer, x: Any, dim: Any = None, *others: Any, **options: Any) -> Any:
    if not isinstance(x, Selection) or not _apart_from_rows(x, dim):
        raise refuse("a selection along its rows", KEEP_ALL)
    return Selection(rule(t, x.rows, dim, *others, **options), x.mask)


def _parts(rule: Rule, t: Tracer, x: Selection, sizes: Any, dim: int = 0) -> Any:
    if not _apart_from_rows(x, dim):
        raise refuse("a selection along its rows", KEEP_ALL)
    return tuple(Selection(part, x.mask) for part in rule(t, x.rows, sizes, dim))


def _apart_from_rows(x: Selection, dim: Any) -> bool:
    """Return whether these are axes, and none that of the rows."""
    axes = (dim,) if isinstance(dim, int) else tuple(dim or (0,))
    return all(0 < axis < len(x.shape) + 1 or -len(x.shape) < axis < 0 for axis in axes)


def _total(rule: Rule, t: Tracer, x: Any, dim: Any = None, *others: Any, **options: Any) -> Any:
    """Return the sum or mean of all that is chosen, or that of each row."""
    if _apart_from_rows(x, dim):
        return Selection(rule(t, x.rows, dim, *others, **options), x.mask)
    if others or options or dim not in (None, ()):
        raise refuse("a selection along its rows", KEEP_ALL)
    return added(t, x, mean=rule is OVER_AXES["mean"])


def added(t: Tracer, x: Selection, *, mean: bool) -> Tensor:
    """Return the sum or the mean of what is chosen; the mean is one kernel, rounded once."""
    attrs: dict[str, Any] = {"value": 0.0, "outside": True}
    rows = t.emit(masks.masked_fill, x.rows, everywhere(t, x.mask, x.rows), **attrs)
    if not mean:
        return OVER_AXES["sum"](t, rows)  # type: ignore[no-any-return]
    one = mean_of_chosen(rows.shape, x.mask.shape)
    return t.emit_nodes(one, t.full(rows), t.full(x.mask), source=one.name)


def _of_classes(rule: Rule, place: int, t: Tracer, *arguments: Any, **options: Any) -> Any:
    """A loss of classes: that of what is not chosen is the one that is left out."""
    if not all(map(is_selection, arguments[:2])):
        raise refuse(BESIDE, KEEP_ALL)
    chosen, (x, classes, *others) = _apart(t, arguments)
    out = arguments[place] if len(arguments) > place else options.get("ignore_index", IGNORED)
    if not t.is_whole(classes):
        raise refuse("shares of classes in a selection", KEEP_ALL)
    targets = t.whole(masks.masked_fill, classes, chosen, value=float(out), outside=True)
    return rule(t, x, targets, *others, **options)


def _of_pairs(rule: Rule, place: int, t: Tracer, *arguments: Any, **options: Any) -> Any:
    """A loss of pairs: of each, and then what is chosen of them."""
    given = list(arguments)
    reduction = given[place] if len(given) > place else options.get("reduction", MEAN)
    if len(given) > place:
        given[place] = NONE
    else:
        options["reduction"] = NONE
    losses = _by_row(rule, t, *given, **options)
    if reduction == NONE:
        return losses
    return added(t, losses, mean=reduction == MEAN)


def _alike(t: Tracer, tensors: Any) -> Any:
    """Selections as `broadcast_tensors` gives them to a loss: their shapes are alike before."""
    if len({x.shape for x in tensors}) > 1 or not all(map(is_selection, tensors)):
        raise refuse(BESIDE, KEEP_ALL)
    return tuple(tensors)


def _put(t: Tracer, x: Any, indices: Any, value: Any, accumulate: bool = False, *_: Any) -> Tensor:
    """x[mask] = values that were chosen by the same mask."""
    if isinstance(x, Selection) or len(indices) != 1 or accumulate or not t.is_mask(indices[0]):
        raise refuse("values in a selection whose size depends on values", KEEP_ALL)
    mask = indices[0]
    if not same(t, value.mask.id, mask.id):
        raise refuse("selections by two masks", KEEP_ALL)
    rows = t.view(x, (size(mask.shape), *x.shape[len(mask.shape) :]))
    kept = value.rows if t.is_whole(rows) else t.emit(like, rows, value.rows)
    return t.view(where_chosen(t, value.mask, kept, rows), x.shape)


def _with_an_axis(t: Tracer, x: Selection, dim: int) -> Selection:
    if dim % (len(x.shape) + 1) == 0:
        raise refuse("a selection along its rows", KEEP_ALL)
    return Selection(unsqueeze(t, x.rows, dim), x.mask)


def _rows_alone(t: Tracer, x: Selection, shape: Any) -> Selection:
    """A view that leaves the rows as they are, as of one row that [None] made."""
    if tuple(shape[1:]) != x.shape[1:]:
        raise refuse("a selection in another shape", KEEP_ALL)
    return x


OWN: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("view", "reshape"), _rows_alone),
        "unsqueeze": _with_an_axis,
        "broadcast_tensors": _alike,
        "index_put": _put,
        "getitem": lambda t, tensors, place: tensors[place],
    }
)

RULES: Mapping[str, Rule] = MappingProxyType({"masked_select": masked_select})
