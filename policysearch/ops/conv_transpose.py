"""Transposed convolution: the gradient of the image, used forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, Node, Op, Shape
from policysearch.ops.builder import Builder
from policysearch.ops.conv import conv2d
from policysearch.ops.conv_geometry import pair
from policysearch.ops.conv_grad import conv2d_dgrad, conv2d_wgrad
from policysearch.ops.conv_rows import flops_of


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    (n, _, *image), (_, channels, *window) = inputs
    stride, padding, dilation, more = (
        pair(attrs.get(name, default))
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    )
    extents = (
        (image[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (window[i] - 1) + more[i] + 1
        for i in range(2)
    )
    return (n, channels * attrs.get("groups", 1), *extents)


def _grad_image(b: Builder, node: Node, grad: int) -> int:
    return b.emit(conv2d, grad, node.inputs[1], attrs=node.attributes)


def _grad_weight(b: Builder, node: Node, grad: int) -> int:
    image, weight = node.inputs
    attrs = {**node.attributes, "shape": b.shape(weight)}
    return b.emit(conv2d_wgrad, image, grad, attrs=attrs)


conv_transpose2d = Op(
    "conv_transpose2d",
    _shape,
    conv2d_dgrad.bind,
    gradients=(_grad_image, _grad_weight),
    flops=lambda inputs, out, attrs: flops_of(*inputs),
    example=lambda rng: Example(
        (
            rng.standard_normal((2, 3, 4, 3)).astype(np.float32),
            rng.standard_normal((3, 2, 3, 2)).astype(np.float32),
        ),
        {"stride": 2, "padding": 1, "output_padding": (1, 0)},
    ),
    kind="gemm",
    placement="low",
    work=conv2d_dgrad.work,
)
"""Image [batch, c_in, h, w] spread by weights [c_in, c_out / groups, kh, kw]; as torch's.

`stride`, `padding`, `dilation`, `output_padding`: one number or (of the height, of the width).
"""
