"""Plain convolutions as row-wise matrix products, and when a convolution is plain.

Image tensors are stored as (height, channels, width, batch). The operand of output row r is
then a contiguous view of the input copied once per window column, so the forward pass is one
copy and one batched matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from policysearch.graph import Attrs, Bind, FloatArray, Shape, size
from policysearch.layout import stored_view
from policysearch.ops.conv_geometry import Geometry, geometry, is_plain, windows
from policysearch.ops.conv_windows import work_of


def row_operands(
    g: Geometry, image: FloatArray, work: FloatArray
) -> tuple[FloatArray, Callable[[], None]]:
    """Return the row operands [out_h, k, out_w * batch] and the function that fills them."""
    shape = (g.padded_h, g.c_in, g.window_w, g.out_w, g.batch)
    columns = work[: g.columns_size].reshape(shape)
    copies = []
    rows = stored_view(image)
    inner = columns[g.padding : g.padding + g.height]
    for j in range(g.window_w):
        first = max(0, -(-(g.padding - j) // g.stride))
        last = min(g.out_w, (g.width - 1 + g.padding - j) // g.stride + 1)
        start = first * g.stride + j - g.padding
        stop = (last - 1) * g.stride + j - g.padding + 1
        copies.append((inner[:, :, j, first:last], rows[:, :, start : stop : g.stride]))

    def fill() -> None:
        if g.padding:
            columns.fill(0.0)
        for to, source in copies:
            np.copyto(to, source)

    row_bytes = columns.strides[0]
    operands = as_strided(
        columns, (g.out_h, g.k, g.plane), (g.stride * row_bytes, g.plane * 4, 4), writeable=False
    )
    return operands, fill


def plain_or_general(plain: Bind, general: Bind) -> Bind:
    """Return the `bind` that takes one of two, by whether the convolution is plain."""

    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        return (plain if is_plain(attrs) else general)(inputs, out, attrs, work)

    return bind


def conv_work(image: Shape, weight: Shape, attrs: Attrs, plain: Callable[[Geometry], int]) -> int:
    """Return the elements of scratch: as `plain` says, or those of the general way."""
    if is_plain(attrs):
        return plain(geometry(image, weight, attrs))
    return work_of(windows(image, weight, attrs))


def flops_of(result: Shape, weight: Shape) -> int:
    """Return two FLOPs per product: each value of the result has one per weight of its channel."""
    return 2 * size(result) * size(weight[1:])
