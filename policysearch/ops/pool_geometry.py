"""The extents of a pool, and its windows as views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import empty
from policysearch.ops.conv_geometry import Pair, pair


@dataclass(frozen=True)
class Pool:
    """Extents of one pool of [batch, channels, h, w]; pairs are (of the height, of the width)."""

    image: Pair
    window: Pair
    stride: Pair
    padding: Pair
    ceil: bool
    counts_padding: bool

    @property
    def out(self) -> Pair:
        high, wide = (self._places(axis) for axis in range(2))
        return high, wide

    def _places(self, axis: int) -> int:
        """As torch: rounded up with `ceil`, but no window begins behind image and padding."""
        stride, pad = self.stride[axis], self.padding[axis]
        room = self.image[axis] + 2 * pad - self.window[axis]
        count = (room + (stride - 1 if self.ceil else 0)) // stride + 1
        return count - 1 if self.ceil and (count - 1) * stride >= self.image[axis] + pad else count

    @property
    def framed(self) -> Pair:
        """Rows and columns that the windows reach over, the border before the image included."""
        high, wide = (
            max(
                (self.out[i] - 1) * self.stride[i] + self.window[i], self.padding[i] + self.image[i]
            )
            for i in range(2)
        )
        return high, wide

    @property
    def apart(self) -> bool:
        """Whether no value is in two windows."""
        return all(s >= k for s, k in zip(self.stride, self.window, strict=True))

    def border(self, shape: Shape, fill: float) -> FloatArray:
        """Return an image like that of `shape` with its border, `fill` throughout."""
        framed = empty((*shape[:2], *self.framed))
        framed.fill(fill)
        return framed

    def interior(self, framed: FloatArray) -> FloatArray:
        """Return the view of the image without its border."""
        (top, left), (high, wide) = self.padding, self.image
        return framed[:, :, top : top + high, left : left + wide]

    def bordered(self, image: FloatArray, fill: float) -> FloatArray:
        """Return the image with a border of `fill`; itself where it has none."""
        if self.framed == self.image:
            return image
        framed = self.border(image.shape, fill)
        self.interior(framed)[...] = image
        return framed

    def places(self, framed: FloatArray) -> Iterator[FloatArray]:
        """Yield, for each place in the window, the values there: views shaped as the result."""
        (high, wide), (s, t) = self.out, self.stride
        for i, j in np.ndindex(self.window):
            yield framed[:, :, i : i + (high - 1) * s + 1 : s, j : j + (wide - 1) * t + 1 : t]

    def shares(self) -> FloatArray | np.float32:
        """Return 1 / the number of values averaged at each place [out_h, out_w], as torch counts.

        What a window rounded up reaches behind the padding is never counted.
        """
        if not self.ceil and (self.counts_padding or self.padding == (0, 0)):
            return np.float32(1.0 / size(self.window))
        counts = [self._counts(axis) for axis in range(2)]
        return (np.float32(1.0) / np.outer(*counts)).astype(np.float32)

    def _counts(self, axis: int) -> FloatArray:
        pad, extent = self.padding[axis], self.image[axis]
        starts = np.arange(self.out[axis]) * self.stride[axis] - pad
        ends = np.minimum(starts + self.window[axis], extent + pad)
        if not self.counts_padding:
            starts, ends = np.maximum(starts, 0), np.minimum(ends, extent)
        return (ends - starts).astype(np.float32)


def pool_of(image: Shape, attrs: Attrs) -> Pool:
    """Return the extents of the pool of an image of this shape that the attributes describe."""
    return Pool(
        pair(image[2:]),
        pair(attrs["window"]),
        pair(attrs.get("stride", attrs["window"])),
        pair(attrs.get("padding", 0)),
        attrs.get("ceil_mode", False),
        attrs.get("count_include_pad", True),
    )
