"""Two-dimensional convolution as row-wise matrix products.

Image tensors are stored as (height, channels, width, batch). The operand of output row r is
then a contiguous view of the input copied once per window column, so the forward pass is one
copy and one batched matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from policysearch.graph import Attrs, Bind, Builder, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import stored_view
from policysearch.ops.conv_geometry import Geometry, geometry, is_plain, windows
from policysearch.ops.conv_windows import bind_conv, bind_dgrad, bind_wgrad, work_of


def _fill_columns(
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


def _bind_conv(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    image, weight = inputs
    product = attrs.get("product", np.matmul)
    g = geometry(image.shape, weight.shape, attrs)
    operands, fill = _fill_columns(g, image, work)
    matrix = work[g.columns_size : g.columns_size + g.c_out * g.k]
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
    operands, fill = _fill_columns(g, image, work)
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


def _either(plain: Bind, general: Bind) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        return (plain if is_plain(attrs) else general)(inputs, out, attrs, work)

    return bind


def _work(image: Shape, weight: Shape, attrs: Attrs, plain: Callable[[Geometry], int]) -> int:
    if is_plain(attrs):
        return plain(geometry(image, weight, attrs))
    return work_of(windows(image, weight, attrs))


def flops_of(result: Shape, weight: Shape) -> int:
    """Return two FLOPs per product: each value of the result has one per weight of its channel."""
    return 2 * size(result) * size(weight[1:])


def _conv_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    w = windows(inputs[0], inputs[1], attrs)
    return (w.batch, w.c_out, *w.out)


def _emit_grad_image(b: Builder, node: Node, grad: int) -> int:
    image, weight = node.inputs
    attrs = {**node.attributes, "shape": b.shape(image)}
    return b.emit(conv2d_dgrad, grad, weight, attrs=attrs)


def _emit_grad_weight(b: Builder, node: Node, grad: int) -> int:
    image, weight = node.inputs
    attrs = {**node.attributes, "shape": b.shape(weight)}
    return b.emit(conv2d_wgrad, grad, image, attrs=attrs)


conv2d_dgrad: Op = Op(
    "conv2d_dgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    bind=_either(_bind_dgrad, bind_dgrad),
    flops=lambda inputs, out, attrs: flops_of(*inputs),
    kind="gemm",
    placement="low",
    work=lambda inputs, out, attrs: _work(out, inputs[1], attrs, lambda g: sum(_dgrad_work(g))),
)


def _wgrad_parts(g: Geometry) -> list[int]:
    """Columns, the gradient with its channels last, the products of every chunk."""
    gradient = g.out_h * g.plane * g.c_out if _is_across(g) else 0
    return [g.columns_size, gradient, g.out_h * (g.plane // g.chunk) * g.k * g.c_out]


conv2d_wgrad: Op = Op(
    "conv2d_wgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    bind=_either(_bind_wgrad, bind_wgrad),
    flops=lambda inputs, out, attrs: flops_of(inputs[0], out),
    kind="gemm",
    placement="low",
    work=lambda inputs, out, attrs: _work(inputs[1], out, attrs, lambda g: sum(_wgrad_parts(g))),
)


conv2d: Op = Op(
    "conv2d",
    _conv_shape,
    _either(_bind_conv, bind_conv),
    gradients=(_emit_grad_image, _emit_grad_weight),
    flops=lambda inputs, out, attrs: flops_of(out, inputs[1]),
    example=lambda rng: Example(
        (
            rng.standard_normal((2, 3, 7, 6)).astype(np.float32),
            rng.standard_normal((4, 3, 3, 2)).astype(np.float32),
        ),
        {"stride": 2, "padding": 1},
    ),
    kind="gemm",
    placement="low",
    work=lambda inputs, out, attrs: _work(
        inputs[0], inputs[1], attrs, lambda g: g.columns_size + g.c_out * g.k
    ),
)
"""Cross-correlation of [batch, c_in, h, w] with [c_out, c_in / groups, kh, kw].

`stride`, `padding` and `dilation` are one number or (of the height, of the width).
"""
