"""Import rules: shapes, axes, parts, sums over axes; what only relabels costs no node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Shape, size
from policysearch.importers.program import TRUTHS
from policysearch.importers.tracer import Rule, Tensor, Tracer
from policysearch.ops.indexing import concatenate, take_slice
from policysearch.ops.masks import masked_fill
from policysearch.ops.reduce import broadcast_to, mean, sum_over
from policysearch.ops.shape import stop_gradient, transpose
from policysearch.ops.source import BACK, NUMBER, pinned_cast


def view(t: Tracer, x: Tensor, *shape: Any) -> Tensor:
    extents = tuple(shape[0]) if shape and isinstance(shape[0], tuple) else shape
    if -1 in extents:
        rest = size(x.shape) // -size(extents)
        extents = tuple(rest if extent == -1 else extent for extent in extents)
    return t.view(x, extents)


def flatten(t: Tracer, x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    first, last = start_dim % len(x.shape), end_dim % len(x.shape)
    joined = size(x.shape[first : last + 1])
    return t.view(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


def unflatten(t: Tracer, x: Tensor, dim: int, sizes: Shape) -> Tensor:
    axis = dim % len(x.shape)
    whole = x.shape[axis]
    parts = tuple(whole // -size(sizes) if part == -1 else part for part in sizes)
    return t.view(x, (*x.shape[:axis], *parts, *x.shape[axis + 1 :]))


def unsqueeze(t: Tracer, x: Tensor, dim: int) -> Tensor:
    axis = dim % (len(x.shape) + 1)
    return t.view(x, (*x.shape[:axis], 1, *x.shape[axis:]))


def squeeze(t: Tracer, x: Tensor, dim: Any) -> Tensor:
    named = dim if isinstance(dim, tuple) else (dim,)
    axes = {axis % len(x.shape) for axis in named}
    rest = (e for axis, e in enumerate(x.shape) if not (axis in axes and e == 1))
    return t.view(x, tuple(rest))


def permute(t: Tracer, x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return x with its axes in this order; the last two exchanged wait for a product to ask."""
    axes = tuple(axis % len(x.shape) for axis in dims)
    last = len(axes) - 1
    shape = tuple(x.shape[axis] for axis in axes)
    if axes == tuple(range(len(axes))):
        return x
    if len(axes) > 1 and axes == (*range(last - 1), last, last - 1):
        return Tensor(x.id, shape, not x.swapped)
    x = t.straight(x)
    # four axes are stored as images are: the matrices of attention are kept as three
    emitted = (size(shape[:-2]), *shape[-2:]) if len(shape) > 3 else shape
    attrs = {"split": x.shape, "axes": axes, "shape": emitted}
    return Tensor(t.emit_move(transpose, x.id, attrs), shape)


def exchanged(t: Tracer, x: Tensor, dim0: int, dim1: int) -> Tensor:
    axes = list(range(len(x.shape)))
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return permute(t, x, axes)


def expand(t: Tracer, x: Tensor, sizes: Sequence[int], implicit: bool = False) -> Tensor:
    lead = len(sizes) - len(x.shape)
    padded = [1] * lead + list(x.shape)
    shape = tuple(old if new == -1 else new for old, new in zip(padded, sizes, strict=True))
    return x if shape == x.shape else t.emit(broadcast_to, x, shape=shape)


def part(
    t: Tracer,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    axis = dim % len(x.shape)
    first, stop, _ = slice(start, end).indices(x.shape[axis])
    if (first, stop, step) == (0, x.shape[axis], 1):
        return x
    return t.emit(take_slice, x, axis=axis, start=first, stop=stop, step=step)


def select(t: Tracer, x: Tensor, dim: int, index: int) -> Tensor:
    axis = dim % len(x.shape)
    place = index % x.shape[axis]
    chosen = part(t, x, axis, place, place + 1)
    return t.view(chosen, (*x.shape[:axis], *x.shape[axis + 1 :]))


def unbind(t: Tracer, x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select(t, x, dim, index) for index in range(x.shape[dim]))


def split(t: Tracer, x: Tensor, sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    whole = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)]
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    pairs = zip(starts, sizes, strict=True)
    return tuple(part(t, x, dim, start, start + count) for start, count in pairs)


def chunk(t: Tracer, x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    return split(t, x, -(-x.shape[dim] // chunks), dim)


def cat(t: Tracer, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return t.emit(concatenate, *tensors, axis=dim % len(tensors[0].shape))


def stack(t: Tracer, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return cat(t, [unsqueeze(t, x, dim) for x in tensors], dim % (len(tensors[0].shape) + 1))


def roll(t: Tracer, x: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> Tensor:
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % x.shape[dim]
        if cut:
            x = cat(t, [part(t, x, dim, cut), part(t, x, dim, 0, cut)], dim)
    return x


def reduced(op: Any) -> Rule:
    """Return the rule of a sum or mean over axes."""

    def rule(
        t: Tracer, x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None
    ) -> Tensor:
        x = cast(t, x, dtype)
        axes = tuple(range(len(x.shape))) if dim is None or dim == () else dim
        axes = (axes,) if isinstance(axes, int) else axes
        axes = tuple(axis % len(x.shape) for axis in axes)
        if axes == (len(x.shape) - 1,) and not x.swapped:
            # over the last axis: rows, whatever views there have been, without a reshape between
            shape = (*x.shape[:-1], 1) if keepdim else x.shape[:-1]
            sums = t.emit_nodes(op, t.rows(x), axes=(1,), keepdim=True)
            return t.view(sums, shape)
        return t.emit(op, x, axes=axes, keepdim=bool(keepdim))

    return rule


def same(t: Tracer, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """A call that changes no value: another layout, another name."""
    return x


def _detach(t: Tracer, x: Tensor) -> Tensor:
    """x without its gradient; what has none is left as it is."""
    return (
        x
        if not t.is_trained(x)
        else Tensor(t.emit_move(stop_gradient, x.id, {}), x.shape, x.swapped)
    )


def broadcast_tensors(t: Tracer, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    shape = tuple(np.broadcast_shapes(*(x.shape for x in tensors)))
    return tuple(expand(t, x, shape) for x in tensors)


def cast(t: Tracer, x: Tensor, dtype: Any, *_: Any, back: bool = False, **__: Any) -> Tensor:
    """A cast to float32 is the user's own; one to the format of a value follows the policy.

    `back`: it narrows what such a cast to float32 has widened, to the format that this one left.
    """
    if dtype == TRUTHS:
        return _truths(t, x)
    if dtype == "float32":
        t.pinned += 1
        return t.pointwise(pinned_cast, x, **{"format": "float32", NUMBER: t.pinned})
    left = t.widened_at(x) if back else None
    return x if left is None else t.pointwise(pinned_cast, x, **{BACK: left})


def _truths(t: Tracer, x: Tensor) -> Tensor:
    if t.is_mask(x):
        return x
    zeros = Tensor(t.filled(0.0, x.shape), x.shape)
    return t.emit(masked_fill, zeros, x, value=1.0)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("view", "reshape", "_unsafe_view"), view),
        **dict.fromkeys(("alias", "clone", "contiguous", "lift_fresh", "lift_fresh_copy"), same),
        "type_as": cast,
        "detach": _detach,
        "ones_like": lambda t, x, dtype=None, **_: t.full_like(1.0, x, dtype),
        "zeros_like": lambda t, x, dtype=None, **_: t.full_like(0.0, x, dtype),
        "getitem": lambda t, x, place: x[place],
        "flatten": flatten,
        "unflatten": unflatten,
        "unsqueeze": unsqueeze,
        "squeeze": squeeze,
        "permute": permute,
        "transpose": exchanged,
        "mT": lambda t, x: exchanged(t, x, -1, -2),
        "numpy_T": lambda t, x: permute(t, x, range(len(x.shape))[::-1]),
        "t": lambda t, x: exchanged(t, x, 0, 1) if len(x.shape) == 2 else x,
        "expand": expand,
        "broadcast_to": expand,
        "broadcast_tensors": broadcast_tensors,
        "expand_as": lambda t, x, other: expand(t, x, other.shape),
        "slice": part,
        "narrow": lambda t, x, dim, start, length: part(t, x, dim, start, start + length),
        "select": select,
        "unbind": unbind,
        "split": split,
        "split_with_sizes": split,
        "chunk": chunk,
        "cat": cat,
        "concat": cat,
        "stack": stack,
        "roll": roll,
        "mean": reduced(mean),
        "sum": reduced(sum_over),
        "to": cast,
        "_to_copy": lambda t, x, dtype=None, **options: cast(t, x, dtype, **options),
    }
)
