"""Max and average pooling over windows of [batch, channels, height, width]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import empty
from policysearch.ops.builder import Builder
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


def _pooled(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*inputs[0][:2], *pool_of(inputs[0], attrs).out)


def _places_read(attrs: Attrs, out: Shape) -> int:
    """Return the elements of all windows together."""
    return size(pair(attrs["window"])) * size(out)


def _max(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    pool = pool_of(inputs[0].shape, attrs)
    return reduce(np.maximum, pool.places(pool.bordered(inputs[0], -np.inf)))


def _max_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The first maximum of a window, in row order, takes the whole gradient, as in torch.

    Ties are common on coarse formats. `left` is what no earlier place has taken. Where windows are
    apart the products stand as they are, -0 among them; a sum from 0 on has no -0.
    """
    left, image, y = inputs
    pool = pool_of(image.shape, attrs)
    spread = pool.border(image.shape, 0.0)
    places = pool.places(pool.bordered(image, -np.inf)), pool.places(spread)
    for values, target in zip(*places, strict=True):
        taken = left * (values == y)
        target[...] = taken if pool.apart else target + taken
        left = left - taken
    return pool.interior(spread)


def _emit_max_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(max_pool_grad, grad, node.inputs[0], node.id, attrs=node.attributes)


max_pool_grad = Op(
    "max_pool_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_max_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    keeps_format=True,
    pointwise=False,
)


def _distinct(rng: np.random.Generator) -> Example:
    """Distinct values 0.1 apart, so that no maximum changes under a small difference."""
    order = rng.permutation(2 * 3 * 6 * 6).reshape(2, 3, 6, 6)
    return Example(((order * 0.1).astype(np.float32),), {"window": 2, "stride": 2})


max_pool = Op(
    "max_pool",
    _pooled,
    _max,
    gradients=(_emit_max_grad,),
    flops=lambda inputs, out, attrs: _places_read(attrs, out),
    example=_distinct,
    keeps_format=True,
    pointwise=False,
)
"""Largest value of every window; a border of -infinity where there is `padding`.

`window`, `stride` (the window's if not given) and `padding` are one number or (of the height, of
the width); `ceil_mode` has a last window that is not full.
"""


def _average(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    pool = pool_of(inputs[0].shape, attrs)
    return reduce(np.add, pool.places(pool.bordered(inputs[0], 0.0))) * pool.shares()


def _average_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    pool = pool_of(attrs["shape"], attrs)
    spread, share = pool.border(attrs["shape"], 0.0), inputs[0] * pool.shares()
    for target in pool.places(spread):
        target += share
    return pool.interior(spread)


def _emit_average_grad(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
    return b.emit(average_pool_grad, grad, attrs=attrs)


average_pool_grad = Op(
    "average_pool_grad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_average_grad,
    pointwise=False,
)
average_pool = Op(
    "average_pool",
    _pooled,
    _average,
    gradients=(_emit_average_grad,),
    flops=lambda inputs, out, attrs: _places_read(attrs, out),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 6, 6)).astype(np.float32),), {"window": 3, "stride": 2}
    ),
    pointwise=False,
)
"""Mean of every window; attributes as of `max_pool`, and `count_include_pad` as in torch."""
