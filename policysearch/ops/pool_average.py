"""Average pooling over windows of [batch, channels, height, width]."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.pool_frame import (
    border_size,
    framed_image,
    places_read,
    pooled_shape,
    scratch_like,
    spread_target,
)
from policysearch.ops.pool_geometry import Pool, pool_of


def _share(pool: Pool) -> np.float32 | FloatArray:
    if not pool.ceil and (pool.counts_padding or pool.padding == (0, 0)):
        return np.float32(1.0 / size(pool.window))
    return pool.shares()


def _bind_average(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    pool = pool_of(inputs[0].shape, attrs)
    framed, frame = framed_image(pool, inputs[0], work, 0.0)
    windows, share = list(pool.windows(framed)), _share(pool)

    def run() -> None:
        frame()
        np.copyto(out, windows[0])
        for window in windows[1:]:
            np.add(out, window, out=out)
        np.multiply(out, share, out=out)

    return run


def _bind_average_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad = inputs[0]
    pool = pool_of(out.shape, attrs)
    spread, back, rest = spread_target(pool, out, work)
    windows, share, part = list(pool.windows(spread)), _share(pool), scratch_like(grad, rest)

    def run() -> None:
        spread.fill(0.0)
        np.multiply(grad, share, out=part)
        for window in windows:
            np.add(window, part, out=window)
        back()

    return run


def _emit_average_grad(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
    return b.emit(average_pool_grad, grad, attrs=attrs)


average_pool_grad = Op(
    "average_pool_grad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    bind=_bind_average_grad,
    work=lambda inputs, out, attrs: size(inputs[0]) + border_size(out, attrs),
    pointwise=False,
)
average_pool = Op(
    "average_pool",
    pooled_shape,
    _bind_average,
    gradients=(_emit_average_grad,),
    flops=lambda inputs, out, attrs: places_read(attrs, out),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 6, 6)).astype(np.float32),), {"window": 3, "stride": 2}
    ),
    work=lambda inputs, out, attrs: border_size(inputs[0], attrs),
    pointwise=False,
)
"""Mean of every window; attributes as of `max_pool`, and `count_include_pad` as in torch."""
