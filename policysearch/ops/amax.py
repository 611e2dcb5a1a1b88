"""The largest magnitude of a tensor, of its rows, or of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size


def _amax_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    axes, block = attrs.get("axes"), attrs.get("block", 0)
    if axes is None:
        return ()
    kept = [-(-extent // block) if block else 1 for extent in inputs[0]]
    return tuple(kept[i] if i in axes else extent for i, extent in enumerate(inputs[0]))


def in_blocks(x: FloatArray, axis: int, block: int) -> list[tuple[FloatArray, tuple[slice, ...]]]:
    """Return views of `x` with `axis` cut in two, [blocks, elements], and the blocks' places.

    One view holds the whole blocks, a second one the shorter block at the end, if any.
    """
    extent, lead = x.shape[axis], (slice(None),) * axis
    whole = extent // block
    found = []
    for first, count, length in ((0, whole, block), (whole * block, 1, extent - whole * block)):
        if count and length:
            part = x[(*lead, slice(first, first + count * length))]
            shape = (*x.shape[:axis], count, length, *x.shape[axis + 1 :])
            step = x.strides[axis]
            strides = (*x.strides[:axis], step * length, step, *x.strides[axis + 1 :])
            view = as_strided(part, shape, strides)
            found.append((view, (*lead, slice(first // block, first // block + count))))
    return found


def _bind_amax(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """The larger of max and -min: no array of absolute values, and NaN comes through."""
    x, axes, block = inputs[0], attrs.get("axes"), attrs.get("block", 0)
    lowest = np.ndarray(out.shape, np.float32, work, strides=out.strides)
    if axes is None:
        flat = x.ravel(order="K")

        def whole() -> None:
            out[()] = abs(np.maximum(np.maximum.reduce(flat), -np.minimum.reduce(flat)))

        return whole
    if block:
        axis = axes[0]
        parts = [(part, axis + 1, out[at], lowest[at]) for part, at in in_blocks(x, axis, block)]
    else:
        parts = [(x, axes, out, lowest)]

    def run() -> None:
        for part, over, high, low in parts:
            np.maximum.reduce(part, axis=over, keepdims=not block, out=high)
            np.minimum.reduce(part, axis=over, keepdims=not block, out=low)
        np.negative(lowest, out=lowest)
        np.maximum(out, lowest, out=out)
        np.absolute(out, out=out)  # zeros may have come out negative

    return run


amax = Op(
    "amax",
    _amax_shape,
    _bind_amax,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example((rng.standard_normal((3, 5)).astype(np.float32),)),
    kind="reduce",
    placement="fp32",
    work=lambda inputs, out, attrs: size(out),
)
"""Largest |x|: of the tensor -> (), or over `axes` (kept with extent 1), or, with `block`, over
each run of `block` elements along the one axis in `axes` (the last may be shorter). NaN wins.
"""
