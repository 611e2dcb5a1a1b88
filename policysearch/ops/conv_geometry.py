"""The extents of a convolution.

Image tensors are stored as (height, channels, width, batch), weights as (window_h, c_in, window_w,
c_out). The contracted index of a product runs over (window_h, c_in, window_w).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policysearch.graph import Attrs, Shape

LONGEST_CHAIN = 448
"""Positions whose products wgrad sums in one go: BLAS libraries cut a longer sum themselves."""

SHORTEST_CHAIN = 64
"""A row that has no divisor from here to LONGEST_CHAIN is not cut: shorter products are slow."""


Pair = tuple[int, int]


def pair(given: int | Sequence[int]) -> Pair:
    """Return (of the height, of the width); one number stands for both."""
    high, wide = (given, given) if isinstance(given, int) else given
    return high, wide


def out_extent(extent: int, window: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Return at how many places along an axis the window fits."""
    return (extent + 2 * padding - dilation * (window - 1) - 1) // stride + 1


def is_plain(attrs: Attrs) -> bool:
    """Return whether there is one group, no dilation, and both axes have one stride and padding."""
    same = all(len(set(pair(attrs.get(name, 1)))) == 1 for name in ("stride", "padding"))
    return same and attrs.get("groups", 1) == 1 and pair(attrs.get("dilation", 1)) == (1, 1)


@dataclass(frozen=True)
class Geometry:
    """Extents of one convolution; `k` is the contracted length window_h * c_in * window_w."""

    batch: int
    c_in: int
    height: int
    width: int
    c_out: int
    window_h: int
    window_w: int
    stride: int
    padding: int

    @property
    def out_h(self) -> int:
        return out_extent(self.height, self.window_h, self.stride, self.padding)

    @property
    def out_w(self) -> int:
        return out_extent(self.width, self.window_w, self.stride, self.padding)

    @property
    def k(self) -> int:
        return self.window_h * self.c_in * self.window_w

    @property
    def plane(self) -> int:
        """Positions of an output row, over the batch."""
        return self.out_w * self.batch

    @property
    def chunk(self) -> int:
        """Positions of an output row that wgrad sums in one go: a divisor of `plane`."""
        longest = min(LONGEST_CHAIN, self.plane)
        divisor = next(d for d in range(longest, 0, -1) if self.plane % d == 0)
        return self.plane if divisor < SHORTEST_CHAIN else divisor

    @property
    def padded_h(self) -> int:
        return self.height + 2 * self.padding

    @property
    def padded_w(self) -> int:
        return self.width + 2 * self.padding

    @property
    def padded_size(self) -> int:
        """Elements of the image with its border; 0 if there is no border."""
        whole = self.padded_h * self.c_in * self.padded_w * self.batch
        return whole if self.padding else 0

    @property
    def columns_size(self) -> int:
        return self.padded_h * self.c_in * self.window_w * self.plane


def geometry(image: Shape, weight: Shape, attrs: Attrs) -> Geometry:
    """Return the extents of a plain convolution.

    The image is [batch, c_in, h, w], the weights are [c_out, c_in, kh, kw].
    """
    n, c, h, w = image
    o, _, kh, kw = weight
    stride, padding = pair(attrs.get("stride", 1))[0], pair(attrs.get("padding", 0))[0]
    return Geometry(n, c, h, w, o, kh, kw, stride, padding)


@dataclass(frozen=True)
class Windows:
    """Extents of any convolution; all pairs are (of the height, of the width)."""

    batch: int
    c_in: int
    image: Pair
    c_out: int
    window: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def out(self) -> Pair:
        high, wide = (
            out_extent(self.image[i], self.window[i], self.stride[i], self.padding[i], d)
            for i, d in enumerate(self.dilation)
        )
        return high, wide

    @property
    def framed(self) -> Shape:
        """The stored image with its border: (height, channels, width, batch)."""
        high, wide = (
            extent + 2 * pad for extent, pad in zip(self.image, self.padding, strict=True)
        )
        return (high, self.c_in, wide, self.batch)

    @property
    def columns(self) -> Shape:
        """Groups, channels of a group, window, positions."""
        return (self.groups, self.c_in // self.groups, *self.window, *self.out, self.batch)

    @property
    def results(self) -> Shape:
        """Groups, channels of a group, positions."""
        return (self.groups, self.c_out // self.groups, *self.out, self.batch)

    @property
    def weights(self) -> Shape:
        """Groups, channels out of a group, the contracted index."""
        taps = self.window[0] * self.window[1]
        return (self.groups, self.c_out // self.groups, self.c_in // self.groups * taps)


def windows(image: Shape, weight: Shape, attrs: Attrs) -> Windows:
    """Return the extents for [batch, c_in, h, w] and weights [c_out, c_in / groups, kh, kw]."""
    n, c, *extents = image
    o, _, *window = weight
    stride, padding = pair(attrs.get("stride", 1)), pair(attrs.get("padding", 0))
    dilation, groups = pair(attrs.get("dilation", 1)), attrs.get("groups", 1)
    return Windows(n, c, pair(extents), o, pair(window), stride, padding, dilation, groups)
