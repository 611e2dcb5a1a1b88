"""Borders around tensors: of a constant, or of values from inside; negative ones crop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.gather import STEPS
from policysearch.ops.resample import Taps, by_taps
from policysearch.ops.rounded_arithmetic import RoundedArithmetic, inner_arithmetic

NAMES: Mapping[str, Literal["reflect", "edge"]] = MappingProxyType(
    {"reflect": "reflect", "replicate": "edge"}
)
"""Modes of torch, and what numpy calls them."""


def _padding_taps(extent: int, width: tuple[int, int], mode: str) -> Taps:
    """Return where values come from that stand `width` before and behind; negative ones crop.

    Around comes, as in torch, what a crop leaves.
    """
    before, after = width
    numbers, added = np.arange(extent), [max(0, n) for n in width]
    if mode == "circular":
        inside = numbers[max(0, -before) : extent - max(0, -after)]
        return Taps(np.pad(inside, added, mode="wrap")[:, np.newaxis])
    numbers = np.pad(numbers, added, mode=NAMES[mode])
    return Taps(numbers[max(0, -before) : len(numbers) - max(0, -after), np.newaxis])


def _taps(image: Shape, attrs: Attrs) -> dict[int, Taps]:
    return {
        axis: _padding_taps(image[axis], width, attrs["mode"])
        for axis, width in enumerate(attrs["widths"])
        if any(width)
    }


_moved, _moved_back = by_taps(_taps)


def _added_back(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray | np.float32:
    """Return gradients where their values came from: summed in float32, or in INNER_FORMAT.

    There each addition rounds, in the order of the padded values; around, axis after axis, as
    torch pads.
    """
    if INNER_FORMAT not in attrs:
        return _moved_back(inputs, attrs)
    total, shape = inputs[0], tuple(attrs["shape"])
    taps, rounded = _taps(shape, attrs), inner_arithmetic(attrs[INNER_FORMAT], attrs)
    around = attrs["mode"] == "circular"
    for axes in [(axis,) for axis in taps] if around else [tuple(taps)]:
        total = _summed_gradient(
            total, shape, {axis: taps[axis].places[:, 0] for axis in axes}, rounded
        )
    return total


def _summed_gradient(
    grad: FloatArray,
    shape: Shape,
    places: Mapping[int, NDArray[np.intp]],
    rounded: RoundedArithmetic,
) -> FloatArray:
    """Return what lies along the axes of `places` added up there, each addition rounded."""
    first, last = min(places), max(places) + 1
    block = (*grad.shape[:first], *shape[first:last], *grad.shape[last:])
    numbers = np.arange(math.prod(shape[first:last])).reshape(shape[first:last])
    for axis, of in places.items():
        numbers = numbers.take(of, axis - first)
    flat, lead, tail = numbers.ravel(), grad.shape[:first], grad.shape[last:]
    given = grad.reshape(*lead, -1, *tail)
    total = np.zeros((*lead, math.prod(shape[first:last]), *tail), np.float32, like=grad)
    at: tuple[Any, ...] = (slice(None),) * len(lead)
    left = np.arange(len(flat))
    while len(left):  # in each round the first of the values that are left for a place
        own, first_left = np.unique(flat[left], return_index=True)
        total[(*at, own)] = rounded(total[(*at, own)] + given[(*at, left[first_left])])
        left = np.delete(left, first_left)
    return total.reshape(block)


pad_grad = Op(
    "pad_grad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_added_back,
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
        attrs = {**node.attributes, "shape": b.shape(node.inputs[0]), STEPS: True}
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

`mode`: constant, filled with `value`, 0 if not given; reflect, replicate or circular. Their
gradients are added in the format of the node.
"""
