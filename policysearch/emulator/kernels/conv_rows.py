"""Plain convolutions in numpy without new arrays, as products for each row of the result.

The operand of output row r is a contiguous view of the input copied once per window column: rows of
the padded image follow one another, and a window of kh of them starts every `stride` rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.lib.stride_tricks import as_strided

from policysearch.emulator.kernels.conv import Direction, Geometry, geometry_of
from policysearch.emulator.kernels.kernel import Bind, Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import stored_view
from policysearch.ops.conv import TURNED_CHANNELS
from policysearch.ops.conv_geometry import chunk_of, is_plain


def _columns_size(g: Geometry) -> int:
    return g.padded_h * g.c_in * g.window_w * g.plane


def _row_operands(g: Geometry, image: FloatArray, work: FloatArray) -> tuple[FloatArray, Run]:
    """Return the row operands [out_h, k, out_w * batch] and the function that fills them."""
    shape = (g.padded_h, g.c_in, g.window_w, g.out_w, g.batch)
    columns = work[: _columns_size(g)].reshape(shape)
    copies = []
    rows = stored_view(image)
    inner = columns[g.padding : g.padding + g.height]
    for j in range(g.window_w):
        # Of window column j, the places that read the image and not its border.
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


def _bind_conv(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    image, weight = inputs
    product = attrs.get("product", np.matmul)
    g = geometry_of("fprop", [image.shape, weight.shape], out.shape, attrs)
    operands, fill = _row_operands(g, image, work)
    matrix = work[_columns_size(g) :][: g.c_out * g.k]
    ordered = matrix.reshape(g.c_out, g.window_h, g.c_in, g.window_w)
    matrix = matrix.reshape(g.c_out, g.k)
    result = stored_view(out).reshape(g.out_h, g.c_out, g.plane)

    def run() -> None:
        fill()
        np.copyto(ordered, weight.transpose(0, 2, 1, 3))
        product(matrix, operands, out=result)

    return run


def _bind_wgrad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, image = inputs
    product, own = attrs.get("product", np.matmul), "product" in attrs
    g = geometry_of("wgrad", [grad.shape, image.shape], out.shape, attrs)
    chunk = g.plane if own else chunk_of(g.plane)
    lead = (g.out_h, g.plane // chunk)
    operands, fill = _row_operands(g, image, work)
    parts = np.split(work, np.cumsum(_wgrad_parts(g)))
    rows = stored_view(grad).reshape(g.out_h, g.c_out, g.plane)
    turned = None if own or not _is_turned(g) else parts[1].reshape(g.out_h, g.plane, g.c_out)
    pixels = operands.reshape(g.out_h, g.k, *lead[1:], chunk).transpose(0, 2, 1, 3)
    if turned is None:
        left = rows.reshape(g.out_h, g.c_out, *lead[1:], chunk).transpose(0, 2, 1, 3)
        right, result = pixels.transpose(0, 1, 3, 2), out.transpose(0, 2, 1, 3)
    else:
        left, right, result = pixels, turned.reshape(*lead, chunk, g.c_out), stored_view(out)
    partial_sums = parts[2][: size(lead) * g.k * g.c_out]
    sums = partial_sums.reshape(*lead, left.shape[2], right.shape[3])
    by_chunk = partial_sums.reshape(size(lead), *result.shape)

    def run() -> None:
        fill()
        if turned is not None:
            np.copyto(turned, rows.transpose(0, 2, 1))
        product(left, right, out=sums)
        np.add.reduce(by_chunk, axis=0, out=result, initial=0.0)

    return run


def _is_turned(g: Geometry) -> bool:
    return g.c_out >= TURNED_CHANNELS


def _wgrad_parts(g: Geometry) -> list[int]:
    """Columns, the gradient with its channels last, the products of every chunk."""
    gradient = g.out_h * g.plane * g.c_out if _is_turned(g) else 0
    chunks = g.plane // chunk_of(g.plane)
    return [_columns_size(g), gradient, g.out_h * chunks * g.k * g.c_out]


def _bind_dgrad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, weight = inputs
    product = attrs.get("product", np.matmul)
    g = geometry_of("dgrad", [grad.shape, weight.shape], out.shape, attrs)
    parts = np.split(work, np.cumsum(_dgrad_parts(g)))
    ordered = parts[0].reshape(g.window_h, g.c_in, g.window_w, g.c_out)
    matrix = parts[0].reshape(g.k, g.c_out)
    spread = parts[1].reshape(g.k, g.plane)
    by_window = spread.reshape(g.window_h, g.c_in, g.window_w, g.out_w, g.batch)
    folded = parts[2].reshape(g.window_h, g.c_in, g.padded_w, g.batch)
    result = stored_view(out)
    total = parts[3].reshape(g.padded_h, g.c_in, g.padded_w, g.batch) if g.padding else result
    p = g.padding
    interior = total[p : p + g.height, :, p : p + g.width]
    rows = stored_view(grad).reshape(g.out_h, g.c_out, g.plane)
    span = (g.out_w - 1) * g.stride + 1
    folds = [(folded[:, :, j : j + span : g.stride], by_window[:, :, j]) for j in range(g.window_w)]

    def run() -> None:
        np.copyto(ordered, weight.transpose(2, 1, 3, 0))
        total.fill(0.0)
        for r in range(g.out_h):
            product(matrix, rows[r], out=spread)
            folded.fill(0.0)
            for to, part in folds:
                np.add(to, part, out=to)
            target = total[r * g.stride : r * g.stride + g.window_h]
            np.add(target, folded, out=target)
        if g.padding:
            np.copyto(result, interior)

    return run


def _dgrad_parts(g: Geometry) -> list[int]:
    """Weights, products of a row, their sums over window columns, the image with its border."""
    return [
        g.k * g.c_out,
        g.k * g.plane,
        g.window_h * g.c_in * g.padded_w * g.batch,
        g.padded_h * g.c_in * g.padded_w * g.batch if g.padding else 0,
    ]


def _offer(bind: Bind, direction: Direction, parts: Callable[[Geometry], list[int]]) -> Offer:
    def work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
        return sum(parts(geometry_of(direction, inputs, out, attrs)))

    return lambda inputs, out, attrs: Kernel(bind, work) if is_plain(attrs) else None


NUMPY_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "conv2d": _offer(_bind_conv, "fprop", lambda g: [_columns_size(g), g.c_out * g.k]),
        "conv2d_dgrad": _offer(_bind_dgrad, "dgrad", _dgrad_parts),
        "conv2d_wgrad": _offer(_bind_wgrad, "wgrad", _wgrad_parts),
        "conv_transpose2d": _offer(_bind_dgrad, "dgrad", _dgrad_parts),
    }
)
