"""The largest magnitude of a tensor, of its rows, or of its blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size


def _amax_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    axes, block = attrs.get("axes"), attrs.get("block", 0)
    if axes is None:
        return ()
    kept = [-(-extent // block) if block else 1 for extent in inputs[0]]
    return tuple(kept[i] if i in axes else extent for i, extent in enumerate(inputs[0]))


def in_blocks(x: FloatArray, axis: int, block: int) -> list[FloatArray]:
    """Return views of `x` with `axis` cut in two, [blocks, elements].

    The first holds the whole blocks, a second one the shorter block at the end, if any.
    """
    whole = x.shape[axis] // block * block
    parts, lengths = np.split(x, [whole], axis), (block, x.shape[axis] - whole)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    return [
        part.reshape(*before, -1, length, *after)
        for part, length in zip(parts, lengths, strict=True)
        if part.shape[axis]
    ]


def _largest(x: FloatArray, axes: tuple[int, ...]) -> FloatArray:
    """The larger of max and -min: no array of absolute values, and NaN comes through."""
    high, low = np.maximum.reduce(x, axis=axes), np.minimum.reduce(x, axis=axes)
    return np.absolute(np.maximum(high, -low))  # zeros may have come out negative


def _amax(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, axes, block = inputs[0], attrs.get("axes"), attrs.get("block", 0)
    if axes is None:
        return _largest(x.ravel(order="K"), (0,))
    if not block:
        return np.expand_dims(_largest(x, axes), axes)
    (axis,) = axes
    parts = [_largest(part, (axis + 1,)) for part in in_blocks(x, axis, block)]
    return np.concatenate(parts, axis)


amax = Op(
    "amax",
    _amax_shape,
    _amax,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example((rng.standard_normal((3, 5)).astype(np.float32),)),
    kind="reduce",
    placement="fp32",
)
"""Largest |x|: of the tensor -> (), or over `axes` (kept with extent 1), or, with `block`, over
each run of `block` elements along the one axis in `axes` (the last may be shorter). NaN wins.
"""
