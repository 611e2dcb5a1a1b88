"""The extents of a convolution.

Image tensors are stored as (height, channels, width, batch), weights as (window_h, c_in, window_w,
c_out). The contracted index of a product runs over (window_h, c_in, window_w).
"""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.graph import Attrs, Shape

LONGEST_CHAIN = 448
"""Positions whose products wgrad sums in one go: BLAS libraries cut a longer sum themselves."""

SHORTEST_CHAIN = 64
"""A row that has no divisor from here to LONGEST_CHAIN is not cut: shorter products are slow."""


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
        return (self.height + 2 * self.padding - self.window_h) // self.stride + 1

    @property
    def out_w(self) -> int:
        return (self.width + 2 * self.padding - self.window_w) // self.stride + 1

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
    """Return the extents for an image [batch, c_in, h, w] and weights [c_out, c_in, kh, kw]."""
    n, c, h, w = image
    o, _, kh, kw = weight
    return Geometry(n, c, h, w, o, kh, kw, attrs.get("stride", 1), attrs.get("padding", 0))
