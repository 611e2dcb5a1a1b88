"""Max and average pooling over windows of [batch, channels, ...]: one axis, two or more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.conv_geometry import many
from policysearch.ops.pool_geometry import pool_of


def _pooled_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*inputs[0][:2], *pool_of(inputs[0], attrs).out)


def _places_read(attrs: Attrs, out: Shape) -> int:
    """Return the elements of all windows together."""
    return size(many(attrs["window"], len(out) - 2)) * size(out)


def _max(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    pool = pool_of(inputs[0].shape, attrs)
    return reduce(np.maximum, pool.places(pool.bordered(inputs[0], -np.inf)))


def _max_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The first maximum of a window, in row order, takes the whole gradient, as in torch.

    Ties are common on coarse formats. `left` is what no earlier place has taken. Where windows are
    apart the products stand as they are, -0 among them; a sum from 0 on has no -0.
    """
    left, image, y = inputs
    pool = pool_of(image.shape, attrs)
    spread = pool.border(image, 0.0)
    places = pool.places(pool.bordered(image, -np.inf)), pool.places(spread)
    for values, target in zip(*places, strict=True):
        taken = left * (values == y)
        target[...] = taken if pool.apart else target + taken
        left = left - taken
    return pool.interior(spread)


def _emit_max_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(max_pool_grad, grad, node.inputs[0], node.id, attrs=node.attributes)


max_pool_grad = Op(
    "max_pool_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_max_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    pointwise=False,
)


def _distinct(rng: np.random.Generator) -> Example:
    """Distinct values 0.1 apart, so that no maximum changes under a small difference."""
    order = rng.permutation(2 * 3 * 6 * 6).reshape(2, 3, 6, 6)
    return Example(((order * 0.1).astype(np.float32),), {"window": 2, "stride": 2})


max_pool = Op(
    "max_pool",
    _pooled_shape,
    _max,
    gradients=(_emit_max_grad,),
    flops=lambda inputs, out, attrs: _places_read(attrs, out),
    example=_distinct,
    keeps_format=True,
    pointwise=False,
)
"""Largest value of every window; a border of -infinity where there is `padding`.

`window`, `stride` (the window's if not given), `padding` and `dilation` are one number or one for
each axis; `ceil_mode` has a last window that is not full.
"""


def _average(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    pool = pool_of(inputs[0].shape, attrs)
    return reduce(np.add, pool.places(pool.bordered(inputs[0], 0.0))) / pool.counts()


def _average_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    pool = pool_of(attrs["shape"], attrs)
    spread, share = pool.border(inputs[0], 0.0), inputs[0] / pool.counts()
    for target in reversed([*pool.places(spread)]):  # to each value from its windows in their order
        target += share
    return pool.interior(spread)


def _emit_average_grad(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
    return b.emit(average_pool_grad, grad, attrs=attrs)


average_pool_grad = Op(
    "average_pool_grad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    forward=_average_grad,
    pointwise=False,
)
average_pool = Op(
    "average_pool",
    _pooled_shape,
    _average,
    gradients=(_emit_average_grad,),
    flops=lambda inputs, out, attrs: _places_read(attrs, out),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 6, 6)).astype(np.float32),), {"window": 3, "stride": 2}
    ),
    pointwise=False,
)
"""Mean of every window; attributes as of `max_pool`, and `count_include_pad` as in torch.

`divisor` takes the place of the number of values.
"""


def _max_places(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    image = inputs[0]
    pool = pool_of(image.shape, attrs)
    numbers = np.arange(size(pool.image), dtype=np.float32).reshape(1, 1, *pool.image)
    own = pool.bordered(np.broadcast_to(numbers, image.shape), -1.0)
    best, where = None, np.zeros((), np.float32)
    for values, places in zip(
        pool.places(pool.bordered(image, -np.inf)), pool.places(own), strict=True
    ):
        larger = places >= 0 if best is None else (values > best) | ((where < 0) & (places >= 0))
        best = values if best is None else np.where(larger, values, best)
        where = np.where(larger, places, where if where.shape else np.float32(-1.0))
    return where


max_pool_places = Op(
    "max_pool_places",
    _pooled_shape,
    _max_places,
    flops=lambda inputs, out, attrs: _places_read(attrs, out),
    example=_distinct,
    pointwise=False,
)
"""Which value of its image each value of `max_pool` is, counted in row order; the first of equal
ones."""
