"""Windows of [batch, channels, ...] as columns, and images as sums of such columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.pool_geometry import Pool, pool_of


def columns_of(pool: Pool, image: FloatArray) -> FloatArray:
    """Return what the windows read, [batch, channels, places in the window, ...]."""
    return np.stack(list(pool.places(pool.bordered(image, 0.0))), axis=2)


def image_of(pool: Pool, columns: FloatArray) -> FloatArray:
    """Return the image whose values are the sums of what the columns hold of them."""
    border = pool.border(columns, 0.0)
    for place, target in enumerate(pool.places(border)):
        target += columns[:, :, place]
    return pool.interior(border)


def _unfolded_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    pool = pool_of(inputs[0], attrs)
    batch, channels, *_ = inputs[0]
    return (batch, channels * size(pool.window), size(pool.out))


def _unfold(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (image,) = inputs
    columns = columns_of(pool_of(image.shape, attrs), image)
    return columns.reshape(_unfolded_shape([image.shape], attrs))


def _fold(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    pool, shape = pool_of(attrs["shape"], attrs), attrs["shape"]
    return image_of(pool, inputs[0].reshape(*shape[:2], size(pool.window), *pool.out))


def _by_unfold(b: Builder, node: Node, grad: int) -> int:
    return b.emit(fold, grad, attrs={**node.attributes, "shape": b.shape(node.inputs[0])})


unfold: Op = Op(
    "unfold",
    _unfolded_shape,
    _unfold,
    gradients=(_by_unfold,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 5, 4)).astype(np.float32),), {"window": 2, "stride": 1}
    ),
    kind="move",
    keeps_format=True,
)
"""The values of every window as a column, [batch, channels window, places]; zeros in the border.

`window`, `stride`, `padding` and `dilation` as of a pool.
"""

fold: Op = Op(
    "fold",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _fold,
    gradients=(lambda b, node, grad: b.emit(unfold, grad, attrs=node.attributes),),
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example(
        (rng.standard_normal((2, 12, 12)).astype(np.float32),),
        {"window": 2, "stride": 1, "shape": (2, 3, 5, 4)},
    ),
    kind="reduce",
)
"""The image of `shape` that is the sum of columns as `unfold` returns them."""
