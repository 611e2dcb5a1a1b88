"""Max pooling over windows of [batch, channels, height, width]."""

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
from policysearch.ops.pool_geometry import pool_of


def _bind_max(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    pool = pool_of(inputs[0].shape, attrs)
    framed, frame = framed_image(pool, inputs[0], work, -np.inf)
    first, *rest = pool.windows(framed)

    def run() -> None:
        frame()
        if not rest:
            np.copyto(out, first)
            return
        np.maximum(first, rest[0], out=out)
        for window in rest[1:]:
            np.maximum(out, window, out=out)

    return run


def _bind_max_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """The first maximum of a window, in row order, takes the whole gradient, as in torch.

    Ties are common on coarse formats. `left` is what no earlier place has taken.
    """
    grad, image, y = inputs
    pool, border = pool_of(image.shape, attrs), border_size(image.shape, attrs)
    framed, frame = framed_image(pool, image, work[:border], -np.inf)
    target_of, back, rest = spread_target(pool, out, work[border:])
    places = list(zip(pool.windows(framed), pool.windows(target_of), strict=True))
    apart = pool.apart
    left, taken = (scratch_like(grad, rest, part) for part in (0, 1))
    hit = np.empty_like(grad, np.bool_)

    def run() -> None:
        frame()
        if not covered:
            target_of.fill(0.0)
        np.copyto(left, grad)
        for window, target in places:
            np.equal(window, y, out=hit)
            if apart:
                np.multiply(left, hit, out=target)
                np.subtract(left, target, out=left)
            else:
                np.multiply(left, hit, out=taken)
                np.add(target, taken, out=target)
                np.subtract(left, taken, out=left)
        back()

    covered = apart and target_of.size == len(places) * y.size
    return run


def _emit_max_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(max_pool_grad, grad, node.inputs[0], node.id, attrs=node.attributes)


max_pool_grad = Op(
    "max_pool_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_max_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    keeps_format=True,
    work=lambda inputs, out, attrs: 2 * (size(inputs[0]) + border_size(out, attrs)),
    pointwise=False,
)


def _example(rng: np.random.Generator) -> Example:
    """Distinct values 0.1 apart, so that no maximum changes under a small difference."""
    order = rng.permutation(2 * 3 * 6 * 6).reshape(2, 3, 6, 6)
    return Example(((order * 0.1).astype(np.float32),), {"window": 2, "stride": 2})


max_pool = Op(
    "max_pool",
    pooled_shape,
    _bind_max,
    gradients=(_emit_max_grad,),
    flops=lambda inputs, out, attrs: places_read(attrs, out),
    example=_example,
    keeps_format=True,
    work=lambda inputs, out, attrs: border_size(inputs[0], attrs),
    pointwise=False,
)
"""Largest value of every window; a border of -infinity where there is `padding`.

`window`, `stride` (the window's if not given) and `padding` are one number or (of the height, of
the width); `ceil_mode` has a last window that is not full.
"""
