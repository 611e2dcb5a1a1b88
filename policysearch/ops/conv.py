"""Two-dimensional convolution and its gradients.

Inside, images are as they are stored, (height, channels, width, batch). A plain convolution (one
group, no dilation, both axes alike) is a product for each row of its result, any other one product
for each group: that is part of the meaning, as BLAS sums differently in products of other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import in_c_order, logical_view, stored_view
from policysearch.ops.builder import Builder
from policysearch.ops.conv_geometry import Windows, chunk_of, flops_of, is_plain, windows
from policysearch.ops.dense import contract

TURNED_CHANNELS = 16
"""Results from which on wgrad turns the gradient, so that BLAS reads along the channels."""


def _taps(w: Windows, padded: FloatArray) -> FloatArray:
    """Return the view of what each window reads: (out_h, c_in, out_w, batch, kh, kw)."""
    reached = sliding_window_view(padded, w.reach, axis=(0, 2), writeable=True)
    placed = reached[:: w.stride[0], :, :: w.stride[1]]
    return placed[..., :: w.dilation[0], :: w.dilation[1]]


def _taps_of(w: Windows, image: FloatArray) -> FloatArray:
    padded = np.zeros(w.padded, np.float32, like=image)
    padded[w.interior] = stored_view(image)
    return _taps(w, padded)


def _rows(w: Windows, image: FloatArray) -> FloatArray:
    """Return for each row of the result what its windows read: (out_h, kh c_in kw, out_w batch)."""
    taps = _taps_of(w, image).transpose(0, 4, 1, 5, 2, 3)
    return taps.reshape(w.out[0], -1, w.out[1] * w.batch)


def _columns(w: Windows, image: FloatArray) -> FloatArray:
    """Return for each group what its windows read: (groups, c_in / groups kh kw, positions)."""
    taps = _taps_of(w, image).transpose(1, 4, 5, 0, 2, 3)
    return taps.reshape(w.groups, -1, size(w.out) * w.batch)


def _by_group(w: Windows, result: FloatArray) -> FloatArray:
    """Return a result [batch, c_out, h, w] as (groups, c_out / groups, positions)."""
    return stored_view(result).transpose(1, 0, 2, 3).reshape(w.groups, -1, size(w.out) * w.batch)


def _by_output(w: Windows, weight: FloatArray) -> FloatArray:
    """Return the weights as (groups, c_out / groups, c_in / groups kh kw)."""
    return in_c_order(weight).reshape(w.groups, w.c_out // w.groups, -1)


def _conv(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    image, weight = inputs
    w = windows(image.shape, weight.shape, attrs)
    if is_plain(attrs):
        # in C order however the weight is stored: BLAS sums a transposed operand in another order
        matrix = in_c_order(weight.transpose(0, 2, 1, 3)).reshape(w.c_out, -1)
        rows = contract(matrix, _rows(w, image), attrs)
        return logical_view(rows.reshape(w.out[0], w.c_out, w.out[1], w.batch))
    result = contract(_by_output(w, weight), _columns(w, image), attrs)
    return result.reshape(w.c_out, *w.out, w.batch).transpose(3, 0, 1, 2)


def image_gradient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, weight = inputs
    w = windows(attrs["shape"], weight.shape, attrs)
    padded = np.zeros(w.padded, np.float32, like=grad)
    if is_plain(attrs):
        _scatter_rows(w, grad, weight, padded, attrs)
    else:
        spread = contract(_by_output(w, weight).transpose(0, 2, 1), _by_group(w, grad), attrs)
        columns, taps = spread.reshape(w.c_in, *w.window, *w.out, w.batch), _taps(w, padded)
        for i, j in np.ndindex(w.window):
            taps[..., i, j] += columns[:, i, j].transpose(1, 0, 2, 3)
    return logical_view(padded[w.interior])


def _scatter_rows(
    w: Windows, grad: FloatArray, weight: FloatArray, padded: FloatArray, attrs: Attrs
) -> None:
    """Add the product of each row of the gradient to `padded`: first over window columns."""
    (high, wide), stride = w.window, w.stride[0]
    matrix = weight.transpose(2, 1, 3, 0).reshape(-1, w.c_out)
    span = (w.out[1] - 1) * stride + 1
    for r, row in enumerate(stored_view(grad).reshape(w.out[0], w.c_out, -1)):
        spread = contract(matrix, row, attrs).reshape(high, w.c_in, wide, w.out[1], w.batch)
        folded = np.zeros((high, *w.padded[1:]), np.float32, like=padded)
        for j in range(wide):
            folded[:, :, j : j + span : stride] += spread[:, :, j]
        padded[r * stride : r * stride + high] += folded


def _wgrad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, image = inputs
    shape = tuple(attrs["shape"])
    w = windows(image.shape, shape, attrs)
    if is_plain(attrs):
        return _wgrad_by_chunk(w, grad, image, attrs)
    return contract(_by_group(w, grad), _columns(w, image).transpose(0, 2, 1), attrs).reshape(shape)


def _wgrad_by_chunk(w: Windows, grad: FloatArray, image: FloatArray, attrs: Attrs) -> FloatArray:
    """Sum the products of each chunk of a row of the result, then those of all chunks of all rows.

    Only BLAS is given chunks, and the operands in the order it is fast in. The product of another
    accumulator sums a whole row, and is made for the gradient on the left.
    """
    own, plane = "product" in attrs, w.out[1] * w.batch
    chunk = plane if own else chunk_of(plane)
    rows = stored_view(grad).reshape(w.out[0], w.c_out, plane // chunk, chunk)
    pixels = _rows(w, image).reshape(w.out[0], -1, plane // chunk, chunk).transpose(0, 2, 1, 3)
    if w.c_out >= TURNED_CHANNELS and not own:
        sums = contract(pixels, in_c_order(rows.transpose(0, 2, 3, 1)), attrs)
        axes, shape = (3, 1, 0, 2), (w.window[0], w.c_in, w.window[1], w.c_out)
    else:
        sums = contract(rows.transpose(0, 2, 1, 3), pixels.transpose(0, 1, 3, 2), attrs)
        axes, shape = (0, 2, 1, 3), (w.c_out, w.window[0], w.c_in, w.window[1])
    total = np.add.reduce(sums.reshape(-1, *shape), axis=0, initial=0.0)  # no -0 of an underflow
    return total.transpose(axes)


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


conv2d: Op = Op(
    "conv2d",
    _conv_shape,
    _conv,
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
)
"""Cross-correlation of [batch, c_in, h, w] with [c_out, c_in / groups, kh, kw].

`stride`, `padding` and `dilation` are one number or (of the height, of the width).
"""

conv2d_dgrad: Op = Op(
    "conv2d_dgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=image_gradient,
    flops=lambda inputs, out, attrs: flops_of(*inputs),
    kind="gemm",
    placement="low",
)
conv2d_wgrad: Op = Op(
    "conv2d_wgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_wgrad,
    flops=lambda inputs, out, attrs: flops_of(inputs[0], out),
    kind="gemm",
    placement="low",
)
