"""Convolutions in the C extension `_convolution`, where their bits are numpy's.

The compiled convolution adds the products of an output in the order of the contracted index, one
fused multiply-add each, as BLAS kernels do within a block of that index. Whether the BLAS of this
machine does so for a given product is found out when a step is compiled: `agreeing` runs both on a
few rows. Where they differ, BLAS stays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Literal

import numpy as np

from policysearch.emulator.kernels.kernel import Bind, Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray, Op, Shape, size
from policysearch.layout import stored_view
from policysearch.ops.conv import conv2d, conv2d_dgrad, conv2d_wgrad
from policysearch.ops.conv_geometry import chunk_of, is_plain, windows
from policysearch.rounding.extension import extension

_convolution = extension("emulator.kernels._convolution")

Direction = Literal["fprop", "dgrad", "wgrad"]
Tensor = Literal["image", "weight", "result"]
MOST_LANES = 16

DRAWN = 8191
"""So many numbers are drawn for samples: a prime, no multiple of which are the extents of nets."""

OPERANDS: dict[Direction, tuple[Tensor, Tensor, Tensor]] = {
    "fprop": ("image", "weight", "result"),
    "dgrad": ("result", "weight", "image"),
    "wgrad": ("result", "image", "weight"),
}
"""Left operand, right operand and output of each direction."""


@dataclass(frozen=True)
class Geometry:
    """Extents of a plain convolution as the extension reads them."""

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
        """The contracted length."""
        return self.window_h * self.c_in * self.window_w

    @property
    def plane(self) -> int:
        """Positions of a row of the result, over the batch."""
        return self.out_w * self.batch

    @property
    def padded_h(self) -> int:
        return self.height + 2 * self.padding

    @property
    def padded_w(self) -> int:
        return self.width + 2 * self.padding


def geometry(image: Shape, weight: Shape, attrs: Attrs) -> Geometry:
    """Return the extents for [batch, c_in, h, w] and weights [c_out, c_in, kh, kw]."""
    w = windows(image, weight, attrs)
    return Geometry(w.batch, w.c_in, *w.image, w.c_out, *w.window, w.stride[0], w.padding[0])


def compiled_available() -> bool:
    """Whether the extension `_convolution` was built and serves this processor."""
    return _convolution is not None and _convolution.vector_bytes() > 0


def shape_of(g: Geometry, tensor: Tensor) -> Shape:
    """Return the shape of the image, the weights or the result of a convolution."""
    if tensor == "image":
        return (g.batch, g.c_in, g.height, g.width)
    if tensor == "weight":
        return (g.c_out, g.c_in, g.window_h, g.window_w)
    return (g.batch, g.c_out, g.out_h, g.out_w)


def geometry_of(
    direction: Direction, inputs: Sequence[Shape], out: Shape, attrs: Attrs
) -> Geometry:
    """Return the extents of the convolution behind a node of any direction."""
    shapes = dict(zip(OPERANDS[direction], (*inputs, out), strict=True))
    return geometry(shapes["image"], shapes["weight"], attrs)


def compiled_work(g: Geometry, direction: Direction) -> int:
    """Return the floats of scratch that the compiled kernel needs."""
    if direction == "dgrad":
        return g.k * g.c_out
    border = g.padded_h * g.c_in * g.padded_w * g.batch if g.padding else 0
    return border + (chunk_of(g.plane) * MOST_LANES if direction == "wgrad" else 0)


def packed(g: Geometry, *, positive_zero: bool) -> bytes:
    """Return the geometry as the extension reads it.

    `positive_zero`: a result of fprop is added to zero at last, as some BLAS kernels do.
    """
    return struct.pack("11q", *astuple(g), chunk_of(g.plane), positive_zero)


def bind_compiled(direction: Direction, *, positive_zero: bool) -> Bind:
    """Return the `bind` of the compiled kernel for a direction."""

    def bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
        g = geometry_of(direction, [i.shape for i in inputs], out.shape, attrs)
        call, given = getattr(_convolution, direction), packed(g, positive_zero=positive_zero)
        left, right, result = (stored_view(array) for array in (*inputs, out))
        return lambda: call(left, right, result, work, given)

    return bind


def samples(g: Geometry, direction: Direction) -> Iterator[tuple[list[FloatArray], FloatArray]]:
    """Yield operands of a convolution, and its output, which holds anything.

    For fprop, first those where the last product of every result is negative and underflows, and
    the others are zero: the sum is -0, and BLAS kernels keep the sign or not. (The gradients are
    added to zero afterwards, which drops it.) Then random ones, over and over the same DRAWN.
    """
    drawn = np.random.default_rng(0).standard_normal(DRAWN, dtype=np.float32)
    tensors = {name: np.zeros(_storage_shape(g, name), np.float32) for name in OPERANDS[direction]}
    left, right, out = (tensors[name].transpose(3, 1, 0, 2) for name in OPERANDS[direction])
    if direction == "fprop":
        tensors["image"].fill(1e-23)
        tensors["weight"][-1, -1, -1] = -1e-23
        yield [left, right], out
    for name in OPERANDS[direction][:2]:
        tensors[name][...] = np.resize(drawn, _storage_shape(g, name))
    yield [left, right], out


def _storage_shape(g: Geometry, tensor: Tensor) -> Shape:
    n, c, h, w = shape_of(g, tensor)
    return h, c, w, n


def agreeing(op: Op, binds: Sequence[Bind], direction: Direction, g: Geometry) -> list[Bind]:
    """Return those of `binds` that give the bits of `op` for the geometry, on the samples."""
    same = list(binds)
    work = np.empty(compiled_work(g, direction), np.float32)
    for inputs, out in samples(g, direction):
        attrs = {"stride": g.stride, "padding": g.padding, "shape": out.shape}
        with np.errstate(all="ignore"):
            expected = np.array(op.forward(inputs, attrs), order="C").view(np.uint32)
        for bind in list(same):
            bind(inputs, out, attrs, work)()
            if not np.array_equal(np.array(out, order="C").view(np.uint32), expected):
                same.remove(bind)
    return same


@cache
def _equal_kernel(op: Op, direction: Direction, g: Geometry) -> Kernel | None:
    """Return the kernel with the bits of `op`; two rows tell, as every row is the same product."""
    rows = replace(g, height=g.window_h + g.stride, width=g.padded_w, padding=0)
    zeros = (False, True) if direction == "fprop" else (False,)
    binds = [bind_compiled(direction, positive_zero=zero) for zero in zeros]
    same = agreeing(op, binds, direction, rows)
    return Kernel(same[0], lambda *_: compiled_work(g, direction)) if same else None


def compiled_kernel(
    op: Op, direction: Direction, inputs: Sequence[Shape], out: Shape, attrs: Attrs
) -> Kernel | None:
    """Return the compiled kernel for these shapes; None where it would change the bits of `op`.

    A single weight is left to numpy, which sums one value over the rows in another order, and so
    is all but a plain convolution.
    """
    if not is_plain(attrs):
        return None
    g = geometry_of(direction, inputs, out, attrs)
    if not compiled_available() or (direction == "wgrad" and size(out) == 1):
        return None
    return _equal_kernel(op, direction, g)


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "conv2d": partial(compiled_kernel, conv2d, "fprop"),
        "conv2d_dgrad": partial(compiled_kernel, conv2d_dgrad, "dgrad"),
        "conv2d_wgrad": partial(compiled_kernel, conv2d_wgrad, "wgrad"),
    }
)
"""By the name of the op."""
