"""Images with other extents: interpolated, averaged over windows that tile them.

Along each axis every value of the result is a weighted sum of values at constant places. It is
computed axis by axis in float32, from the last on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Forward, Node, Op, Shape, size
from policysearch.ops.builder import Builder

Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Taps:
    """What each value along an axis is made of: [count, taps] places, and weights or None for 1."""

    places: Places
    weights: FloatArray | None = None

    def taken(self, x: FloatArray, axis: int) -> FloatArray:
        """Return the weighted sums of x along `axis`."""
        if self.weights is None:
            return np.take(x, self.places[:, 0], axis)
        shape = [1] * x.ndim
        shape[axis] = -1
        result: Any = np.float32(0.0)
        for places, weights in zip(self.places.T, self.weights.T, strict=True):
            result = result + np.take(x, places, axis) * weights.reshape(shape)
        taken: FloatArray = result
        return taken

    def spread(self, grad: FloatArray, axis: int, extent: int) -> FloatArray:
        """Return the gradient of x, `extent` values along `axis`, of that of `taken`."""
        rows = np.moveaxis(grad, axis, 0)
        total = np.zeros((extent, *rows.shape[1:]), np.float32)
        weights = np.ones(self.places.shape, np.float32) if self.weights is None else self.weights
        for row, places, shares in zip(rows, self.places, weights, strict=True):
            for place, share in zip(places, shares, strict=True):
                total[place] += row * share
        return np.moveaxis(total, 0, axis)


def _sources(extent: int, count: int, attrs: Attrs, scale: float | None) -> FloatArray:
    """Return where in the image each value lies, in float32 as torch (`UpSample.h`)."""
    numbers = np.arange(count, dtype=np.float32)
    if attrs.get("align_corners"):
        step = (extent - 1) / (count - 1) if count > 1 else 0.0
        return numbers * np.float32(step)
    ratio = np.float32(1.0 / scale) if scale else np.float32(extent) / np.float32(count)
    if attrs["method"] == "nearest":
        return numbers * ratio
    half = np.float32(0.5)
    return (numbers + half) * ratio - (half if attrs["method"] != "nearest-exact" else 0)


def _interpolation(extent: int, count: int, attrs: Attrs, scale: float | None) -> Taps:
    where = _sources(extent, count, attrs, scale)
    if attrs["method"].startswith("nearest"):
        return Taps(np.minimum(where.astype(np.intp), extent - 1)[:, np.newaxis])
    if attrs["method"] == "linear":
        where = np.clip(where, 0.0, extent - 1)
    first = np.floor(where).astype(np.intp)
    rest = (where - first).astype(np.float32)[:, np.newaxis]
    reach = np.array([0, 1] if attrs["method"] == "linear" else [-1, 0, 1, 2])
    places = np.clip(first[:, np.newaxis] + reach, 0, extent - 1)
    distance = np.abs(rest - reach)
    weights = 1.0 - distance if len(reach) == 2 else _cubic(distance)
    return Taps(places, weights.astype(np.float32))


CUBIC = -0.75
"""The slope of the cubic convolution kernel at distance 1, as in torch and OpenCV (Keys 1981)."""


def _cubic(distance: FloatArray) -> FloatArray:
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
    far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
    return np.where(distance <= 1, near, far)


def windows_of(extent: int, count: int) -> list[range]:
    """Return the places of each of `count` windows that tile an axis, as torch: some overlap."""
    return [range(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]


def _average_taps(extent: int, count: int) -> Taps:
    windows = windows_of(extent, count)
    longest = max(len(window) for window in windows)
    places = [[min(w[0] + i, w[-1]) for i in range(longest)] for w in windows]
    weights = [[(i < len(w)) / len(w) for i in range(longest)] for w in windows]
    return Taps(np.array(places, np.intp), np.array(weights, np.float32))


def _taps(image: Shape, attrs: Attrs) -> dict[int, Taps]:
    sizes = attrs["sizes"]
    axes = range(len(image) - len(sizes), len(image))
    if "method" not in attrs:
        return {a: _average_taps(image[a], count) for a, count in zip(axes, sizes, strict=True)}
    scales = attrs.get("scales") or (None,) * len(sizes)
    return {
        axis: _interpolation(image[axis], count, attrs, scale)
        for axis, count, scale in zip(axes, sizes, scales, strict=True)
    }


TapsOf = Callable[[Shape, Attrs], Mapping[int, Taps]]
"""Of the shape of an image and the attributes: what is done along each axis that changes."""


def by_taps(taps_of: TapsOf) -> tuple[Forward, Forward]:
    """Return what computes the image of other extents, and its gradient, to attribute `shape`."""

    def forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
        (x,) = inputs
        for axis, taps in reversed(tuple(taps_of(x.shape, attrs).items())):
            x = taps.taken(x, axis)
        return x

    def backward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
        (grad,), shape = inputs, attrs["shape"]
        for axis, taps in taps_of(shape, attrs).items():
            grad = taps.spread(grad, axis, shape[axis])
        return grad

    return forward, backward


_forward, _backward = by_taps(_taps)

resample_grad = Op(
    "resample_grad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_backward,
    flops=lambda inputs, out, attrs: 2 * size(inputs[0]),
    pointwise=False,
)


def _gradient(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
    return b.emit(resample_grad, grad, attrs=attrs)


def _resized_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*inputs[0][: -len(attrs["sizes"])], *attrs["sizes"])


def _image(rng: np.random.Generator) -> FloatArray:
    return rng.standard_normal((2, 3, 5, 4)).astype(np.float32)


interpolate = Op(
    "interpolate",
    _resized_shape,
    _forward,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: 4 * size(out),
    example=lambda rng: Example((_image(rng),), {"method": "linear", "sizes": (7, 9)}),
    placement="fp32",
    pointwise=False,
)
"""The last axes with other `sizes`; `method` is nearest, nearest-exact, linear or cubic.

`scales` are the factors that places are computed by, None for that of the sizes. `align_corners`:
the first and the last value stay.
"""

adaptive_average = Op(
    "adaptive_average",
    _resized_shape,
    _forward,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: size(inputs[0]) + size(out),
    example=lambda rng: Example((_image(rng),), {"sizes": (3, 3)}),
    pointwise=False,
)
"""Means over windows that tile the last axes, as many as `sizes` say: where an extent does not
divide, neighbours share a value."""
