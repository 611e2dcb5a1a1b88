"""Two-dimensional convolution, a plain one as row-wise matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape
from policysearch.layout import stored_view
from policysearch.ops.builder import Builder
from policysearch.ops.conv_geometry import geometry, windows
from policysearch.ops.conv_grad import conv2d_dgrad, conv2d_wgrad
from policysearch.ops.conv_rows import conv_work, flops_of, plain_or_general, row_operands
from policysearch.ops.conv_windows import bind_conv


def _bind_conv(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    image, weight = inputs
    product = attrs.get("product", np.matmul)
    g = geometry(image.shape, weight.shape, attrs)
    operands, fill = row_operands(g, image, work)
    matrix = work[g.columns_size : g.columns_size + g.c_out * g.k]
    ordered = matrix.reshape(g.c_out, g.window_h, g.c_in, g.window_w)
    matrix = matrix.reshape(g.c_out, g.k)
    result = stored_view(out).reshape(g.out_h, g.c_out, g.plane)

    def run() -> None:
        fill()
        np.copyto(ordered, weight.transpose(0, 2, 1, 3))
        product(matrix, operands, out=result)

    return run


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
    plain_or_general(_bind_conv, bind_conv),
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
    work=lambda inputs, out, attrs: conv_work(
        inputs[0], inputs[1], attrs, lambda g: g.columns_size + g.c_out * g.k
    ),
)
"""Cross-correlation of [batch, c_in, h, w] with [c_out, c_in / groups, kh, kw].

`stride`, `padding` and `dilation` are one number or (of the height, of the width).
"""
