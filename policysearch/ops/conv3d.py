"""Convolution over three axes, or any number: one product for each group of channels.

It is of the weights and of what every window reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import in_c_order
from policysearch.ops.builder import Builder
from policysearch.ops.conv_geometry import flops_of, many
from policysearch.ops.dense import contract
from policysearch.ops.pool_geometry import Pool, pool_of
from policysearch.ops.windows import columns_of, image_of


def _windows(image: Shape, weight: Shape, attrs: Attrs) -> Pool:
    axes = len(weight) - 2
    return pool_of(
        image, {**attrs, "window": weight[2:], "stride": many(attrs.get("stride", 1), axes)}
    )


def _by_group(x: FloatArray, groups: int) -> FloatArray:
    """Return [batch, channels, ...] as (groups, channels / groups ..., batch places).

    What follows the channels, but the places, is part of a row: [batch, channels, window, places].
    """
    return np.moveaxis(x, 0, -2).reshape(groups, -1, x.shape[0] * x.shape[-1])


def _read(image: FloatArray, weight: Shape, attrs: Attrs) -> FloatArray:
    columns = columns_of(_windows(image.shape, weight, attrs), image)
    flat = columns.reshape(*columns.shape[:3], -1)
    return _by_group(flat, attrs.get("groups", 1))


def _conv_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    image, weight = inputs
    return (image[0], weight[0], *_windows(image, weight, attrs).out)


def _conv(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    image, weight = inputs
    batch, channels, *out = _conv_shape([image.shape, weight.shape], attrs)
    rows = in_c_order(weight).reshape(attrs.get("groups", 1), -1, size(weight.shape[1:]))
    result = contract(rows, _read(image, weight.shape, attrs), attrs)
    return np.moveaxis(result.reshape(channels, batch, *out), 0, 1)


def _conv_image(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, weight = inputs
    shape, groups = tuple(attrs["shape"]), attrs.get("groups", 1)
    pool = _windows(shape, weight.shape, attrs)
    rows = in_c_order(weight).reshape(groups, -1, size(weight.shape[1:]))
    read = _by_group(grad.reshape(*grad.shape[:2], -1), groups)
    spread = contract(rows.transpose(0, 2, 1), read, attrs)
    columns = spread.reshape(shape[1], size(pool.window), shape[0], *pool.out)
    return image_of(pool, np.moveaxis(columns, 2, 0))


def _conv_weight(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, image = inputs
    shape = tuple(attrs["shape"])
    rows = _by_group(grad.reshape(*grad.shape[:2], -1), attrs.get("groups", 1))
    return contract(rows, _read(image, shape, attrs).transpose(0, 2, 1), attrs).reshape(shape)


def _by_image(b: Builder, node: Node, grad: int) -> int:
    image, weight = node.inputs
    attrs = {**node.attributes, "shape": b.shape(image)}
    return b.emit(conv3d_dgrad, grad, weight, attrs=attrs)


def _by_weight(b: Builder, node: Node, grad: int) -> int:
    image, weight = node.inputs
    attrs = {**node.attributes, "shape": b.shape(weight)}
    return b.emit(conv3d_wgrad, grad, image, attrs=attrs)


conv3d: Op = Op(
    "conv3d",
    _conv_shape,
    _conv,
    gradients=(_by_image, _by_weight),
    flops=lambda inputs, out, attrs: flops_of(out, inputs[1]),
    example=lambda rng: Example(
        (
            rng.standard_normal((2, 4, 4, 5, 3)).astype(np.float32),
            rng.standard_normal((6, 2, 2, 3, 2)).astype(np.float32),
        ),
        {"stride": (1, 2, 1), "padding": 1, "groups": 2},
    ),
    kind="gemm",
    placement="low",
)
"""Cross-correlation of [batch, c_in, ...] with [c_out, c_in / groups, ...]: of three axes, or more.

`stride`, `padding` and `dilation` are one number or one for each axis.
"""

conv3d_dgrad: Op = Op(
    "conv3d_dgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_conv_image,
    flops=lambda inputs, out, attrs: flops_of(*inputs),
    kind="gemm",
    placement="low",
)
conv3d_wgrad: Op = Op(
    "conv3d_wgrad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_conv_weight,
    flops=lambda inputs, out, attrs: flops_of(inputs[0], out),
    kind="gemm",
    placement="low",
)


def _spread_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    (batch, _, *image), (_, channels, *window) = inputs
    stride, padding, dilation, more = (
        many(attrs.get(name, default), len(image))
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0))
    )
    extents = (
        (image[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (window[i] - 1) + more[i] + 1
        for i in range(len(image))
    )
    return (batch, channels * attrs.get("groups", 1), *extents)


def _spread(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    shape = _spread_shape([array.shape for array in inputs], attrs)
    return _conv_image(inputs, {**attrs, "shape": shape})


def _by_spread_weight(b: Builder, node: Node, grad: int) -> int:
    image, weight = node.inputs
    attrs = {**node.attributes, "shape": b.shape(weight)}
    return b.emit(conv3d_wgrad, image, grad, attrs=attrs)


conv_transpose3d: Op = Op(
    "conv_transpose3d",
    _spread_shape,
    _spread,
    gradients=(
        lambda b, node, grad: b.emit(conv3d, grad, node.inputs[1], attrs=node.attributes),
        _by_spread_weight,
    ),
    flops=lambda inputs, out, attrs: flops_of(*inputs),
    example=lambda rng: Example(
        (
            rng.standard_normal((2, 3, 2, 3, 2)).astype(np.float32),
            rng.standard_normal((3, 2, 2, 3, 2)).astype(np.float32),
        ),
        {"stride": 2, "padding": 1, "output_padding": (0, 1, 0)},
    ),
    kind="gemm",
    placement="low",
)
"""Image [batch, c_in, ...] spread by weights [c_in, c_out / groups, ...], of three axes or more."""
