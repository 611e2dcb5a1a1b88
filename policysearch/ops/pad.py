"""Borders around tensors: of a constant, or of values from inside; negative ones crop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.resample import Taps, by_taps

NAMES: Mapping[str, Literal["reflect", "edge", "wrap"]] = MappingProxyType(
    {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
)
"""Modes of torch, and what numpy calls them."""


def _padded(extent: int, width: tuple[int, int], mode: str) -> Taps:
    """Return where values come from that stand `width` before and behind; negative ones crop."""
    before, after = width
    numbers = np.pad(np.arange(extent), [max(0, n) for n in width], mode=NAMES[mode])
    return Taps(numbers[max(0, -before) : len(numbers) - max(0, -after), np.newaxis])


def _taps(image: Shape, attrs: Attrs) -> dict[int, Taps]:
    return {
        axis: _padded(image[axis], width, attrs["mode"])
        for axis, width in enumerate(attrs["widths"])
        if any(width)
    }


_moved, _moved_back = by_taps(_taps)

pad_grad = Op(
    "pad_grad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_moved_back,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
)


def _padded_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    pairs = zip(inputs[0], attrs["widths"], strict=True)
    return tuple(extent + sum(width) for extent, width in pairs)


def _pad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray | np.float32:
    if attrs["mode"] != "constant":
        return _moved(inputs, attrs)
    (x,), widths = inputs, attrs["widths"]
    ends = zip(x.shape, widths, strict=True)
    inside = x[tuple(slice(max(0, -a), n - max(0, -b)) for n, (a, b) in ends)]
    added = [(max(0, before), max(0, after)) for before, after in widths]
    return np.pad(inside, added, constant_values=np.float32(attrs.get("value", 0.0)))


def _by_pad(b: Builder, node: Node, grad: int) -> int:
    if node.attributes["mode"] != "constant":
        attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
        return b.emit(pad_grad, grad, attrs=attrs)
    cut = tuple((-before, -after) for before, after in node.attributes["widths"])
    return b.emit(pad, grad, attrs={"mode": "constant", "widths": cut})


pad: Op = Op(
    "pad",
    _padded_shape,
    _pad,
    gradients=(_by_pad,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 5, 4)).astype(np.float32),),
        {"mode": "reflect", "widths": ((0, 0), (0, 0), (1, -1), (3, 2))},
    ),
    kind="move",
)
"""x with `widths` (before, after) more places along each axis, fewer where they are negative.

`mode`: constant, filled with `value`, 0 if not given; reflect, replicate or circular.
"""
