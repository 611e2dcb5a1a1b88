"""The extents of windows over [batch, channels, ...] along any number of axes, and their views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import empty
from policysearch.ops.conv_geometry import many

Extents = tuple[int, ...]
"""One number for each axis behind batch and channels."""


@dataclass(frozen=True)
class Pool:
    """Extents of the windows over one image [batch, channels, ...].

    `divisor` is what an average divides by, 0 for the number of values in the window.
    """

    image: Extents
    window: Extents
    stride: Extents
    padding: Extents
    dilation: Extents
    ceil: bool = False
    counts_padding: bool = True
    divisor: int = 0

    @property
    def axes(self) -> range:
        return range(len(self.image))

    @property
    def reach(self) -> Extents:
        """The extent of a window with what its dilation leaves out."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.window, strict=True))

    @property
    def out(self) -> Extents:
        return tuple(self._places(axis) for axis in self.axes)

    def _places(self, axis: int) -> int:
        """As torch: rounded up with `ceil`, but no window begins behind image and padding."""
        stride, pad = self.stride[axis], self.padding[axis]
        room = self.image[axis] + 2 * pad - self.reach[axis]
        count = (room + (stride - 1 if self.ceil else 0)) // stride + 1
        return count - 1 if self.ceil and (count - 1) * stride >= self.image[axis] + pad else count

    @property
    def framed(self) -> Extents:
        """The extents that the windows reach over, the border before the image included."""
        return tuple(
            max((out - 1) * stride + reach, padding + image)
            for out, stride, reach, padding, image in zip(
                self.out, self.stride, self.reach, self.padding, self.image, strict=True
            )
        )

    @property
    def apart(self) -> bool:
        """Whether no value is in two windows."""
        return all(s >= k for s, k in zip(self.stride, self.reach, strict=True))

    def border(self, like: FloatArray, fill: float) -> FloatArray:
        """Return an image with its border, of as many channels as `like`, `fill` throughout."""
        framed = empty((*like.shape[:2], *self.framed), like)
        framed.fill(fill)
        return framed

    def interior(self, framed: FloatArray) -> FloatArray:
        """Return the view of the image without its border."""
        inside = (slice(p, p + n) for p, n in zip(self.padding, self.image, strict=True))
        return framed[(slice(None), slice(None), *inside)]

    def bordered(self, image: FloatArray, fill: float) -> FloatArray:
        """Return the image with a border of `fill`; itself where it has none."""
        if self.framed == self.image:
            return image
        framed = self.border(image, fill)
        self.interior(framed)[...] = image
        return framed

    def places(self, framed: FloatArray) -> Iterator[FloatArray]:
        """Yield, for each place in the window, the values there: views shaped as the result."""
        spans = [(out - 1) * s + 1 for out, s in zip(self.out, self.stride, strict=True)]
        for place in np.ndindex(self.window):
            starts = (i * d for i, d in zip(place, self.dilation, strict=True))
            cuts = (
                slice(start, start + span, step)
                for start, span, step in zip(starts, spans, self.stride, strict=True)
            )
            yield framed[(slice(None), slice(None), *cuts)]

    def counts(self) -> FloatArray | np.float32:
        """Return the number of values averaged at each place of the result, as torch counts.

        What a window rounded up reaches behind the padding is never counted.
        """
        plain = not self.ceil and (self.counts_padding or not any(self.padding))
        if plain or self.divisor:
            return np.float32(self.divisor or size(self.window))
        counts: FloatArray = reduce(np.multiply.outer, map(self._counts, self.axes))
        return counts

    def _counts(self, axis: int) -> FloatArray:
        pad, extent = self.padding[axis], self.image[axis]
        starts = np.arange(self.out[axis]) * self.stride[axis] - pad
        ends = np.minimum(starts + self.window[axis], extent + pad)
        if not self.counts_padding:
            starts, ends = np.maximum(starts, 0), np.minimum(ends, extent)
        return (ends - starts).astype(np.float32)


def pool_of(image: Shape, attrs: Attrs) -> Pool:
    """Return the extents of the windows over an image of this shape that the attributes describe.

    `window`, `stride` (the window's if there is none), `padding` and `dilation` are one number or
    one for each axis.
    """
    axes = len(image) - 2
    return Pool(
        tuple(image[2:]),
        many(attrs["window"], axes),
        many(attrs.get("stride", attrs["window"]), axes),
        many(attrs.get("padding", 0), axes),
        many(attrs.get("dilation", 1), axes),
        attrs.get("ceil_mode", False),
        attrs.get("count_include_pad", True),
        attrs.get("divisor", 0),
    )
