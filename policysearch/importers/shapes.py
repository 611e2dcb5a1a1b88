"""Import rules: shapes, axes, parts; what only relabels costs no node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Shape, size
from policysearch.importers.program import TRUTHS, WHOLES
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops.draws import like
from policysearch.ops.indexing import concatenate, take_slice
from policysearch.ops.masks import masked_fill
from policysearch.ops.quotients import whole_number
from policysearch.ops.reduce import broadcast_to
from policysearch.ops.shape import flip, stop_gradient, transpose, triangle
from policysearch.ops.shape import reshape as as_read
from policysearch.ops.source import BACK, NUMBER, pinned_cast
from policysearch.ops.windows import unfold


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
    if shape == x.shape:
        return x
    return Tensor(t.emit_move(broadcast_to, t.full(x), {"shape": shape}), shape)


def part(
    t: Tracer,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    where = slice_of(x, dim, start, end, step)
    return t.emit(take_slice, x, **where) if where else x


def slice_of(
    x: Tensor, dim: int, start: int | None, end: int | None, step: int
) -> dict[str, Any] | None:
    """Return where a slice of x is, None for all of x."""
    axis = dim % len(x.shape)
    first, stop, _ = slice(start, end).indices(x.shape[axis])
    if (first, stop, step) == (0, x.shape[axis], 1):
        return None
    return {"axis": axis, "start": first, "stop": stop, "step": step}


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
    # An empty vector joins anything in torch, as a cache does before its first token.
    full = [x for x in tensors if tuple(x.shape) != (0,)] or list(tensors)
    if len(full) == 1:
        return full[0]
    return t.emit(concatenate, *full, axis=dim % len(full[0].shape))


def stack(t: Tracer, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = dim % (len(tensors[0].shape) + 1)
    shape = (*tensors[0].shape[:axis], 1, *tensors[0].shape[axis:])
    return cat(t, [Tensor(t.shaped(x, shape), shape) for x in tensors], axis)


def roll(t: Tracer, x: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> Tensor:
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % x.shape[dim]
        if cut:
            x = cat(t, [part(t, x, dim, cut), part(t, x, dim, 0, cut)], dim)
    return x


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


def _item(t: Tracer, x: Tensor) -> Tensor:
    """The one value of x as a number, which has no gradient."""
    return _detach(t, t.view(x, ()))


def broadcast_tensors(t: Tracer, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    shape = tuple(np.broadcast_shapes(*(x.shape for x in tensors)))
    return tuple(expand(t, x, shape) for x in tensors)


def cast(
    t: Tracer, x: Tensor, dtype: Any, *_: Any, back: bool = False, kept: bool = False, **__: Any
) -> Tensor:
    """A cast to float32 is the user's own; one to the format of a value follows the policy.

    `back`: it narrows what such a cast to float32 has widened, to the format that this one left,
    unless it was `kept`, float32 before.
    """
    if dtype == TRUTHS:
        return _truths(t, x)
    if dtype == WHOLES and not t.is_whole(x):
        return t.whole(whole_number, _detach(t, x), to="trunc")
    if dtype == "float32":
        t.pinned += not kept
        number = {} if kept else {NUMBER: t.pinned}
        return t.pointwise(pinned_cast, x, **{"format": "float32", **number})
    if isinstance(dtype, Tensor):
        return x if dtype.id == x.id else t.emit(like, dtype, x)
    if t.is_stored(x):
        return _as_met(t, x)
    left = t.widened_at(x) if back else None
    return x if left is None else t.pointwise(pinned_cast, x, **{BACK: left})


def _as_met(t: Tracer, x: Tensor) -> Tensor:
    """Return a parameter in the format of what it meets."""
    read = Tensor(t.b.emit(as_read, x.id, attrs={"shape": t.b.shape(x.id)}), x.shape, x.swapped)
    t.follow(read)
    return read


def _truths(t: Tracer, x: Tensor) -> Tensor:
    if t.is_mask(x):
        return x
    zeros = Tensor(t.filled(0.0, x.shape), x.shape)
    return t.emit(masked_fill, zeros, x, value=1.0)


def repeat(t: Tracer, x: Tensor, counts: Sequence[int]) -> Tensor:
    """Return x side by side with itself, `counts` times along each axis."""
    shape = ((1,) * (len(counts) - len(x.shape))) + x.shape
    apart = [extent for pair in zip(counts, shape, strict=True) for extent in pair]
    single = [extent for one in shape for extent in (1, one)]
    wide = expand(t, t.view(x, tuple(single)), apart)
    return t.view(wide, tuple(n * e for n, e in zip(counts, shape, strict=True)))


def tile(t: Tracer, x: Tensor, counts: Sequence[int]) -> Tensor:
    return repeat(t, x, ((1,) * (len(x.shape) - len(counts))) + tuple(counts))


def repeat_interleave(t: Tracer, x: Tensor, count: int, dim: int | None = None, **_: Any) -> Tensor:
    """Return x with each of its parts along an axis `count` times in a row."""
    if isinstance(count, Tensor):
        raise refuse("counts that differ", "take rows by a constant index instead")
    if dim is None:
        x, dim = t.view(x, (size(x.shape),)), 0
    axis = dim % len(x.shape)
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    wide = expand(t, t.view(x, (*before, 1, *after)), (*before, count, *after))
    return t.view(wide, (*before[:-1], before[-1] * count, *after))


def moved(t: Tracer, x: Tensor, source: Any, target: Any) -> Tensor:
    """Return x with axes in other places, as torch.movedim."""
    ends = [(axes,) if isinstance(axes, int) else axes for axes in (source, target)]
    sources, targets = ([axis % len(x.shape) for axis in axes] for axes in ends)
    rest = iter([axis for axis in range(len(x.shape)) if axis not in sources])
    placed = dict(zip(targets, sources, strict=True))
    return permute(t, x, [placed[i] if i in placed else next(rest) for i in range(len(x.shape))])


def flipped(t: Tracer, x: Tensor, dims: Sequence[int]) -> Tensor:
    return t.emit(flip, x, axes=tuple(axis % len(x.shape) for axis in dims))


def rotated(t: Tracer, x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Return x turned by `k` right angles from the first of two axes to the second."""
    first, second = dims
    if k % 4 == 2:
        return flipped(t, x, dims)
    if k % 4 == 3:
        return flipped(t, exchanged(t, x, first, second), (second,))
    return exchanged(t, flipped(t, x, (second,)), first, second) if k % 4 else x


def diagonal(t: Tracer, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the diagonals of two axes as the last one: every so many values of both together."""
    axes = [axis % len(x.shape) for axis in (dim1, dim2)]
    rest = [axis for axis in range(len(x.shape)) if axis not in axes]
    x = permute(t, x, [*rest, *axes])
    *lead, rows, columns = x.shape
    start = offset if offset >= 0 else -offset * columns
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    flat = t.view(x, (*lead, rows * columns))
    return part(t, flat, -1, start, start + (count - 1) * (columns + 1) + 1, columns + 1)


def sections(t: Tracer, x: Tensor, parts: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Return so many parts, the first ones by 1 longer, or parts that are cut at these places."""
    whole = x.shape[dim]
    if isinstance(parts, int):
        lengths = [whole // parts + (i < whole % parts) for i in range(parts)]
        return split(t, x, lengths, dim)
    ends = [slice(0, end).indices(whole)[1] for end in parts]
    starts = [0, *ends]
    return tuple(
        part(t, x, dim, start, max(start, end))
        for start, end in zip(starts, [*ends, whole], strict=True)
    )


def _rows(t: Tracer, x: Tensor, count: int) -> Tensor:
    """Return x with at least one axis, or with two, as torch.atleast_1d and atleast_2d."""
    return t.view(x, (1,) * (count - len(x.shape)) + x.shape)


def _columns(t: Tracer, x: Tensor) -> Tensor:
    return x if len(x.shape) > 1 else t.view(x, (size(x.shape), 1))


def _deep(t: Tracer, x: Tensor) -> Tensor:
    x = _rows(t, x, 2)
    return x if len(x.shape) > 2 else unsqueeze(t, x, -1)


def joined(raised: Callable[[Tracer, Tensor], Tensor], axis: int) -> Rule:
    """Return the rule of tensors side by side along an axis, each first with axes enough."""

    def rule(t: Tracer, tensors: Sequence[Tensor]) -> Tensor:
        shaped = [raised(t, x) for x in tensors]
        return cat(t, shaped, min(axis, len(shaped[0].shape) - 1))

    return rule


def pixel_shuffle(t: Tracer, x: Tensor, factor: int) -> Tensor:
    *lead, channels, high, wide = x.shape
    n = len(lead)
    apart = t.view(x, (*lead, channels // factor**2, factor, factor, high, wide))
    turned = permute(t, apart, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return t.view(turned, (*lead, channels // factor**2, high * factor, wide * factor))


def pixel_unshuffle(t: Tracer, x: Tensor, factor: int) -> Tensor:
    *lead, channels, high, wide = x.shape
    n = len(lead)
    apart = t.view(x, (*lead, channels, high // factor, factor, wide // factor, factor))
    turned = permute(t, apart, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return t.view(turned, (*lead, channels * factor**2, high // factor, wide // factor))


def channel_shuffle(t: Tracer, x: Tensor, groups: int) -> Tensor:
    batch, channels, *rest = x.shape
    apart = t.view(x, (batch, groups, channels // groups, *rest))
    return t.view(exchanged(t, apart, 1, 2), x.shape)


def windows_along(t: Tracer, x: Tensor, dim: int, extent: int, step: int) -> Tensor:
    """Return Tensor.unfold: windows along an axis, their values along a new last one."""
    axis = dim % len(x.shape)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    image = t.view(x, (size(before), 1, x.shape[axis], size(after)))
    columns = t.emit(unfold, image, window=(extent, 1), stride=(step, 1))
    count = (x.shape[axis] - extent) // step + 1
    apart = t.view(columns, (size(before), extent, count * size(after)))
    turned = exchanged(t, t.view(apart, (*before, extent, count, *after)), axis, axis + 1)
    return moved(t, turned, axis + 1, -1)


def _triangle(*, upper: bool) -> Rule:
    return lambda t, x, diagonal=0: t.emit(triangle, x, diagonal=diagonal, upper=upper)


def new(t: Tracer, x: Tensor, shape: Any, value: float, dtype: Any = None, **_: Any) -> Tensor:
    """Return a tensor full of `value`, in the format of x unless one is named."""
    if dtype is None and t.is_trained(x):
        first = part(t, t.view(x, (size(x.shape),)), 0, 0, 1)
        return expand(t, t.view(t.full_like(value, first), ()), shape)
    number = t.full_like(value, Tensor(t.filled(0.0, (1,)), (1,)))
    return expand(t, t.view(number, ()), shape)


def filled(value: float | None) -> Rule:
    """Return the rule of a tensor of one number, that of the call where it is None."""

    def rule(t: Tracer, shape: Sequence[int], number: float = 0.0, **_: Any) -> Tensor:
        return expand(t, t.number(number if value is None else value), shape)

    return rule


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("view", "reshape", "_unsafe_view"), view),
        **dict.fromkeys(("alias", "clone", "contiguous", "lift_fresh", "lift_fresh_copy"), same),
        "type_as": cast,
        "detach": _detach,
        **dict.fromkeys(("item", "_local_scalar_dense"), _item),
        "ones_like": lambda t, x, dtype=None, **_: t.full_like(1.0, x, dtype),
        **dict.fromkeys(
            ("zeros_like", "empty_like"), lambda t, x, dtype=None, **_: t.full_like(0.0, x, dtype)
        ),
        "full_like": lambda t, x, value, dtype=None, **_: new(t, x, x.shape, value, dtype),
        "new_full": new,
        "new_ones": lambda t, x, shape, dtype=None, **_: new(t, x, shape, 1.0, dtype),
        **dict.fromkeys(
            ("new_zeros", "new_empty"),
            lambda t, x, shape, dtype=None, **_: new(t, x, shape, 0.0, dtype),
        ),
        "getitem": lambda t, x, place: x[place],
        "flatten": flatten,
        "unflatten": unflatten,
        "unsqueeze": unsqueeze,
        "squeeze": squeeze,
        "permute": permute,
        **dict.fromkeys(("transpose", "swapaxes", "swapdims"), exchanged),
        **dict.fromkeys(("mT", "mH", "adjoint"), lambda t, x: exchanged(t, x, -1, -2)),
        **dict.fromkeys(("movedim", "moveaxis"), moved),
        "numpy_T": lambda t, x: permute(t, x, range(len(x.shape))[::-1]),
        "t": lambda t, x: exchanged(t, x, 0, 1) if len(x.shape) == 2 else x,
        "expand": expand,
        "broadcast_to": expand,
        "broadcast_tensors": broadcast_tensors,
        **dict.fromkeys(("view_as", "reshape_as"), lambda t, x, other: t.view(x, other.shape)),
        "ravel": flatten,
        "expand_as": lambda t, x, other: expand(t, x, other.shape),
        "slice": part,
        "narrow": lambda t, x, dim, start, length: part(t, x, dim, start, start + length),
        "select": select,
        "unbind": unbind,
        **dict.fromkeys(("split", "split_with_sizes", "unsafe_split"), split),
        **dict.fromkeys(("chunk", "unsafe_chunk"), chunk),
        "tensor_split": sections,
        "hsplit": lambda t, x, parts: sections(t, x, parts, min(1, len(x.shape) - 1)),
        "vsplit": sections,
        **dict.fromkeys(("cat", "concat", "concatenate"), cat),
        "stack": stack,
        "hstack": joined(lambda t, x: _rows(t, x, 1), 1),
        "vstack": joined(lambda t, x: _rows(t, x, 2), 0),
        "dstack": joined(_deep, 2),
        "column_stack": joined(_columns, 1),
        "atleast_1d": lambda t, x: _rows(t, x, 1),
        "atleast_2d": lambda t, x: _rows(t, x, 2),
        "repeat": repeat,
        "tile": tile,
        "repeat_interleave": repeat_interleave,
        "roll": roll,
        "flip": flipped,
        "fliplr": lambda t, x: flipped(t, x, (1,)),
        "flipud": lambda t, x: flipped(t, x, (0,)),
        "rot90": rotated,
        "diagonal": diagonal,
        "tril": _triangle(upper=False),
        "triu": _triangle(upper=True),
        "unfold": windows_along,
        "pixel_shuffle": pixel_shuffle,
        "pixel_unshuffle": pixel_unshuffle,
        **dict.fromkeys(("channel_shuffle", "native_channel_shuffle"), channel_shuffle),
        "to": cast,
        "ones": filled(1.0),
        "zeros": filled(0.0),
        "full": filled(None),
        "_to_copy": lambda t, x, dtype=None, **options: cast(t, x, dtype, **options),
    }
)
