"""Transposes and reshapes that change the order of storage, in the C extension `_permute`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from operator import mul
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Bind, Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import empty, stored_flat
from policysearch.ops.shape import permuted
from policysearch.rounding.extension import extension

_permute = extension("emulator.kernels._permute")

MOST_AXES = 8
"""Of the extension."""

Axis = tuple[int, int, int]
"""How many, and how far apart in the source and in the copy."""

Views = Callable[[FloatArray, FloatArray, Attrs], tuple[FloatArray, FloatArray] | None]
"""Returns views of input and output that a plain copy connects, None where there are none."""


def _split_alike(a: Shape, b: Shape) -> Shape | None:
    """Return the coarsest shape that both `a` and `b` only join axes of; None without one."""
    edges = sorted({1, *accumulate(a, mul), *accumulate(b, mul)})
    if any(high % low for low, high in pairwise(edges)):
        return None
    return tuple(high // low for low, high in pairwise(edges))


def _if_views(
    x: FloatArray, out: FloatArray, source: FloatArray, target: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """Return source and target: None where they are copies, as axes joined across storage are."""
    views = np.may_share_memory(source, x) and np.may_share_memory(target, out)
    return (source, target) if views else None


def seen_alike(
    x: FloatArray, out: FloatArray, attrs: Attrs
) -> tuple[FloatArray, FloatArray] | None:
    """Return what a reshape copies: both sides under their common split, whatever their order."""
    split = _split_alike(x.shape, out.shape)
    return _if_views(x, out, x.reshape(split), out.reshape(split)) if split is not None else None


def seen_permuted(
    x: FloatArray, out: FloatArray, attrs: Attrs
) -> tuple[FloatArray, FloatArray] | None:
    """Return what a transpose copies: its input permuted, its output with the axes unjoined."""
    source = x.reshape(attrs.get("split", x.shape)).transpose(attrs["axes"])
    return _if_views(x, out, source, out.reshape(permuted(x.shape, attrs)))


def axes_of(source: FloatArray, target: FloatArray) -> list[Axis] | None:
    """Return the axes that the extension goes over to copy `source` to `target`, views alike.

    The last is side by side in the source, the one before in the copy, or the last is in both.
    None where that cannot be said.
    """
    steps = zip(source.shape, source.strides, target.strides, strict=True)
    axes = [(n, a // 4, b // 4) for n, a, b in steps if n > 1]
    axes.sort(key=lambda axis: (-axis[2], -axis[1]))
    joined: list[Axis] = []
    for axis in axes:
        n, a, b = axis
        if joined and joined[-1][1:] == (n * a, n * b):
            joined[-1] = (joined[-1][0] * n, a, b)
        else:
            joined.append(axis)
    columns = [axis for axis in joined if axis[1] == 1]
    rows = [axis for axis in joined if axis[2] == 1]
    if len(columns) != 1 or len(rows) != 1 or len(joined) > MOST_AXES - 1:
        return None
    outer = [axis for axis in joined if axis not in (*rows, *columns)]
    return [*outer, *(rows if rows != columns else [(1, 0, 0)]), *columns]


def _copy_axes(
    views: Views, inputs: Sequence[Shape], out: Shape, attrs: Attrs
) -> list[Axis] | None:
    seen = views(empty(inputs[0]), empty(out), attrs)
    return axes_of(*seen) if seen else None


def _offer(views: Views) -> Offer:
    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        axes = _copy_axes(views, inputs, out, attrs) if _permute and size(out) else None
        return Kernel(_bind(axes)) if axes else None

    return offer


def _bind(axes: Sequence[Axis]) -> Bind:
    packed = struct.pack(f"{3 * len(axes)}q", *(number for axis in axes for number in axis))

    def bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
        flat = (stored_flat(array) for array in (inputs[0], out))
        return partial(_permute.permute, *flat, packed)

    return bind


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {"transpose": _offer(seen_permuted), "reshape": _offer(seen_alike)}
)


def _numpy_offer(views: Views) -> Offer:
    def bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
        source, target = views(inputs[0], out, attrs) or (inputs[0], out)
        return lambda: np.copyto(target, source)

    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        return Kernel(bind) if views(empty(inputs[0]), empty(out), attrs) else None

    return offer


NUMPY_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {"transpose": _numpy_offer(seen_permuted), "reshape": _numpy_offer(seen_alike)}
)
