"""Transposed convolution: the gradient of the image, used forward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape
from policysearch.ops.builder import Builder
from policysearch.ops.conv import conv2d, conv2d_wgrad, image_gradient
from policysearch.ops.conv_geometry import flops_of, pair


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


def _forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    shape = _shape([array.shape for array in inputs], attrs)
    return image_gradient(inputs, {**attrs, "shape": shape})


def _grad_weight(b: Builder, node: Node, grad: int) -> int:
    image, weight = node.inputs
    attrs = {**node.attributes, "shape": b.shape(weight)}
    return b.emit(conv2d_wgrad, image, grad, attrs=attrs)


conv_transpose2d = Op(
    "conv_transpose2d",
    _shape,
    _forward,
    gradients=(
        lambda b, node, grad: b.emit(conv2d, grad, node.inputs[1], attrs=node.attributes),
        _grad_weight,
    ),
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
)
"""Image [batch, c_in, h, w] spread by weights [c_in, c_out / groups, kh, kw]; as torch's.

`stride`, `padding`, `dilation`, `output_padding`: one number or (of the height, of the width).
"""
