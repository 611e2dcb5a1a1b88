"""The extents of a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policysearch.graph import Attrs, Shape, size

LONGEST_CHAIN = 448
"""Positions whose products wgrad sums in one go: BLAS libraries cut a longer sum themselves."""

SHORTEST_CHAIN = 64
"""A row that has no divisor from here to LONGEST_CHAIN is not cut: shorter products are slow."""

Pair = tuple[int, int]


def pair(value: int | Sequence[int]) -> Pair:
    """Return (of the height, of the width); one number stands for both."""
    high, wide = (value, value) if isinstance(value, int) else value
    return high, wide


def many(value: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Return one number for each of `count` axes; one number stands for all."""
    return (value,) * count if isinstance(value, int) else tuple(value)


def is_plain(attrs: Attrs) -> bool:
    """Return whether there is one group, no dilation, and both axes have one stride and padding."""
    same = all(len(set(pair(attrs.get(name, 1)))) == 1 for name in ("stride", "padding"))
    return same and attrs.get("groups", 1) == 1 and pair(attrs.get("dilation", 1)) == (1, 1)


@dataclass(frozen=True)
class Windows:
    """Extents of a convolution; all pairs are (of the height, of the width)."""

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
    def reach(self) -> Pair:
        """The extent of a window with what its dilation leaves out."""
        high, wide = (d * (k - 1) + 1 for d, k in zip(self.dilation, self.window, strict=True))
        return high, wide

    @property
    def out(self) -> Pair:
        """At how many places along each axis the window fits."""
        high, wide = (
            (self.image[i] + 2 * self.padding[i] - self.reach[i]) // self.stride[i] + 1
            for i in range(2)
        )
        return high, wide

    @property
    def padded(self) -> Shape:
        """The stored image with its border."""
        high, wide = (self.image[i] + 2 * self.padding[i] for i in range(2))
        return (high, self.c_in, wide, self.batch)

    @property
    def interior(self) -> tuple[slice, slice, slice]:
        """Where the image is in `padded`."""
        rows, columns = (slice(p, p + n) for p, n in zip(self.padding, self.image, strict=True))
        return rows, slice(None), columns


def windows(image: Shape, weight: Shape, attrs: Attrs) -> Windows:
    """Return the extents for [batch, c_in, h, w] and weights [c_out, c_in / groups, kh, kw]."""
    n, c, *extents = image
    o, _, *window = weight
    stride, padding = pair(attrs.get("stride", 1)), pair(attrs.get("padding", 0))
    dilation, groups = pair(attrs.get("dilation", 1)), attrs.get("groups", 1)
    return Windows(n, c, pair(extents), o, pair(window), stride, padding, dilation, groups)


def chunk_of(plane: int) -> int:
    """Return how many positions of a row of `plane` wgrad sums in one go: a divisor."""
    divisor = next(d for d in range(min(LONGEST_CHAIN, plane), 0, -1) if plane % d == 0)
    return plane if divisor < SHORTEST_CHAIN else divisor


def flops_of(result: Shape, weight: Shape) -> int:
    """Return two FLOPs per product: each value of the result has one per weight of its channel."""
    return 2 * size(result) * size(weight[1:])
