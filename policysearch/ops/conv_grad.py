"""The gradients of a two-dimensional convolution, plain ones as row-wise matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, size
from policysearch.layout import stored_view
from policysearch.ops.conv_geometry import Geometry, geometry
from policysearch.ops.conv_rows import conv_work, flops_of, plain_or_general, row_operands
from policysearch.ops.conv_windows import bind_dgrad, bind_wgrad


def _bind_wgrad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """Sum the products of each chunk of an output row, then those of all chunks of all rows.

    Only BLAS is given chunks, and the operands in the order it is fast in. The product of another
    accumulator sums a whole row, and is made for the gradient on the left.
    """
    grad, image = inputs
    product = attrs.get("product", np.matmul)
    g = geometry(image.shape, out.shape, attrs)
    own = "product" in attrs
    chunk = g.plane if own else g.chunk
    lead = (g.out_h, g.plane // chunk)
    operands, fill = row_operands(g, image, work)
    parts = np.split(work, np.cumsum(_wgrad_parts(g)))
    rows = stored_view(grad).reshape(g.out_h, g.c_out, g.plane)
    turned = _is_across(g) and not own
    across = parts[1].reshape(g.out_h, g.plane, g.c_out) if turned else None
    partial = parts[2][: size(lead) * g.k * g.c_out]
    pixels = operands.reshape(g.out_h, g.k, *lead[1:], chunk).transpose(0, 2, 1, 3)
    if across is None:
        left = rows.reshape(g.out_h, g.c_out, *lead[1:], chunk).transpose(0, 2, 1, 3)
        right, result = pixels.transpose(0, 1, 3, 2), out.transpose(0, 2, 1, 3)
    else:
        left, right, result = pixels, across.reshape(*lead, chunk, g.c_out), stored_view(out)
    sums = partial.reshape(*lead, left.shape[2], right.shape[3])
    by_chunk = partial.reshape(size(lead), *result.shape)

    def run() -> None:
        fill()
        if across is not None:
            np.copyto(across, rows.transpose(0, 2, 1))
        product(left, right, out=sums)
        np.add.reduce(by_chunk, axis=0, out=result, initial=0.0)  # leaves no -0 of an underflow

    return run


def _is_across(g: Geometry) -> bool:
    """Whether wgrad turns the gradient so that BLAS reads both operands along the channels.

    With few channels the copy costs more than it saves.
    """
    return g.c_out >= 16


def _bind_dgrad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """Scatter the product of each output row back: first over window columns, then rows."""
    grad, weight = inputs
    product = attrs.get("product", np.matmul)
    g = geometry(out.shape, weight.shape, attrs)
    parts = np.split(work, np.cumsum(_dgrad_work(g)))
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


def _dgrad_work(g: Geometry) -> list[int]:
    return [
        g.k * g.c_out,
        g.k * g.plane,
        g.window_h * g.c_in * g.padded_w * g.batch,
        g.padded_h * g.c_in * g.padded_w * g.batch if g.padding else 0,
    ]


conv2d_dgrad: Op = Op(
    "conv2d_dgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    bind=plain_or_general(_bind_dgrad, bind_dgrad),
    flops=lambda inputs, out, attrs: flops_of(*inputs),
    kind="gemm",
    placement="low",
    work=lambda inputs, out, attrs: conv_work(out, inputs[1], attrs, lambda g: sum(_dgrad_work(g))),
)


def _wgrad_parts(g: Geometry) -> list[int]:
    """Columns, the gradient with its channels last, the products of every chunk."""
    gradient = g.out_h * g.plane * g.c_out if _is_across(g) else 0
    return [g.columns_size, gradient, g.out_h * (g.plane // g.chunk) * g.k * g.c_out]


conv2d_wgrad: Op = Op(
    "conv2d_wgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    bind=plain_or_general(_bind_wgrad, bind_wgrad),
    flops=lambda inputs, out, attrs: flops_of(inputs[0], out),
    kind="gemm",
    placement="low",
    work=lambda inputs, out, attrs: conv_work(
        inputs[1], out, attrs, lambda g: sum(_wgrad_parts(g))
    ),
)
