"""Convolutions in the C extension `_convolution`, where their bits are numpy's.

The compiled convolution adds the products of an output in the order of the contracted index, one
fused multiply-add each, as BLAS kernels do within a block of that index. Whether the BLAS of this
machine does so for a given product is found out when a step is compiled: `agrees` runs both on a
few rows. Where they differ, BLAS stays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Literal

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel, Offer
from policysearch.graph import Attrs, Bind, FloatArray, Op, Shape, size
from policysearch.layout import stored_view
from policysearch.ops.conv import conv2d
from policysearch.ops.conv_geometry import Geometry, geometry, is_plain
from policysearch.ops.conv_grad import conv2d_dgrad, conv2d_wgrad

try:
    import policysearch.emulator.kernels._convolution as _convolution
except ImportError:
    _convolution = None

Direction = Literal["fprop", "dgrad", "wgrad"]
Tensor = Literal["image", "weight", "result"]
MOST_LANES = 16

OPERANDS: dict[Direction, tuple[Tensor, Tensor, Tensor]] = {
    "fprop": ("image", "weight", "result"),
    "dgrad": ("result", "weight", "image"),
    "wgrad": ("result", "image", "weight"),
}
"""Left operand, right operand and output of each direction."""


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
    return g.padded_size + (g.chunk * MOST_LANES if direction == "wgrad" else 0)


def packed(g: Geometry, *, positive_zero: bool) -> bytes:
    """Return the geometry as the extension reads it.

    `positive_zero`: a result of fprop is added to zero at last, as some BLAS kernels do.
    """
    return struct.pack("11q", *astuple(g), g.chunk, positive_zero)


def bind_compiled(direction: Direction, *, positive_zero: bool) -> Bind:
    """Return the `bind` of the compiled kernel for a direction."""

    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        g = geometry_of(direction, [i.shape for i in inputs], out.shape, attrs)
        call, given = getattr(_convolution, direction), packed(g, positive_zero=positive_zero)
        left, right, result = (stored_view(array) for array in (*inputs, out))
        return lambda: call(left, right, result, work, given)

    return bind


def samples(g: Geometry, direction: Direction) -> Iterator[tuple[list[FloatArray], FloatArray]]:
    """Yield operands of a convolution, and its output, which holds anything.

    The first are random. For fprop, the last product of every result then is negative and
    underflows, and the others are zero: the sum is -0, and BLAS kernels keep the sign or not.
    (The gradients are added to zero afterwards, which drops it.)
    """
    rng = np.random.default_rng(0)
    tensors = {}
    for name in OPERANDS[direction]:
        n, c, h, w = shape_of(g, name)
        tensors[name] = rng.standard_normal((h, c, w, n), dtype=np.float32)
    left, right, out = (tensors[name].transpose(3, 1, 0, 2) for name in OPERANDS[direction])
    yield [left, right], out
    if direction == "fprop":
        tensors["image"].fill(1e-23)
        tensors["weight"].fill(0.0)
        tensors["weight"][-1, -1, -1] = -1e-23
        yield [left, right], out


def agrees(op: Op, compiled: Bind, direction: Direction, g: Geometry) -> bool:
    """Return whether `compiled` gives the bits of `op.bind` for the geometry, on the samples."""
    for inputs, out in samples(g, direction):
        shapes = [array.shape for array in inputs]
        attrs = {"stride": g.stride, "padding": g.padding, "shape": out.shape}
        scratch = max(op.work(shapes, out.shape, attrs), compiled_work(g, direction))
        results = []
        for bind in (op.bind, compiled):
            with np.errstate(all="ignore"):
                bind(inputs, out, attrs, np.empty(scratch, np.float32))()
            results.append(out.copy().view(np.uint32))
        if not np.array_equal(results[0], results[1]):
            return False
    return True


@cache
def _fitting(op: Op, direction: Direction, g: Geometry) -> Kernel | None:
    """Return the kernel with the bits of `op`; two rows tell, as every row is the same product."""
    rows = replace(g, height=g.window_h + g.stride, width=g.padded_w, padding=0)
    for positive_zero in (False, True):
        bind = bind_compiled(direction, positive_zero=positive_zero)
        if agrees(op, bind, direction, rows):
            return Kernel(bind, lambda inputs, out, attrs: compiled_work(g, direction))
    return None


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
    return _fitting(op, direction, g)


KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "conv2d": partial(compiled_kernel, conv2d, "fprop"),
        "conv2d_dgrad": partial(compiled_kernel, conv2d_dgrad, "dgrad"),
        "conv2d_wgrad": partial(compiled_kernel, conv2d_wgrad, "wgrad"),
    }
)
"""By the name of the op."""
