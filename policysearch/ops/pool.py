"""Max and average pooling over windows of [batch, channels, height, width]."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import (
    Attrs,
    Builder,
    Example,
    FloatArray,
    Node,
    Op,
    Shape,
    size,
)
from policysearch.layout import stored
from policysearch.ops.conv_geometry import pair
from policysearch.ops.pool_geometry import Pool, pool_of


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*inputs[0][:2], *pool_of(inputs[0], attrs).out)


def _border(shape: Shape, attrs: Attrs) -> int:
    """Return the elements of an image with its border; 0 where it has none."""
    pool = pool_of(shape, attrs)
    return size(pool.border(shape)) if pool.has_border else 0


def _places(attrs: Attrs, out: Shape) -> int:
    return size(pair(attrs["window"])) * size(out)


def _framed(
    pool: Pool, image: FloatArray, work: FloatArray, fill: float
) -> tuple[FloatArray, Callable[[], object]]:
    """Return the image, with a border of `fill` where it has one, and the function that fills it.

    The border is laid around the image in storage order.
    """
    if not pool.has_border:
        return image, lambda: None
    shape = pool.border(image.shape)
    framed = stored(work[: size(shape)], shape)
    inner = pool.interior(framed)

    def run() -> None:
        framed.fill(fill)
        np.copyto(inner, image)

    return framed, run


def _like(array: FloatArray, work: FloatArray, part: int = 0) -> FloatArray:
    start = part * array.size
    return np.ndarray(array.shape, np.float32, work[start:], strides=array.strides)


def _bind_max(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    pool = pool_of(inputs[0].shape, attrs)
    framed, frame = _framed(pool, inputs[0], work, -np.inf)
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


def _spread(
    pool: Pool, out: FloatArray, work: FloatArray
) -> tuple[FloatArray, Callable[[], object], FloatArray]:
    """Return where windows put their gradients, what brings them to `out`, the scratch left."""
    if not pool.has_border:
        return out, lambda: None, work
    shape = pool.border(out.shape)
    framed = stored(work[: size(shape)], shape)
    inner = pool.interior(framed)
    return framed, lambda: np.copyto(out, inner), work[size(shape) :]


def _bind_max_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """The first maximum of a window, in row order, takes the whole gradient, as in torch.

    Ties are common on coarse formats. `left` is what no earlier place has taken.
    """
    grad, image, y = inputs
    pool, border = pool_of(image.shape, attrs), _border(image.shape, attrs)
    framed, frame = _framed(pool, image, work[:border], -np.inf)
    target_of, back, rest = _spread(pool, out, work[border:])
    places = list(zip(pool.windows(framed), pool.windows(target_of), strict=True))
    apart = pool.apart
    left, taken, hit = _like(grad, rest, 0), _like(grad, rest, 1), np.empty_like(grad, np.bool_)

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
    work=lambda inputs, out, attrs: 2 * (size(inputs[0]) + _border(out, attrs)),
    pointwise=False,
)


def _example(rng: np.random.Generator) -> Example:
    """Distinct values 0.1 apart, so that no maximum changes under a small difference."""
    order = rng.permutation(2 * 3 * 6 * 6).reshape(2, 3, 6, 6)
    return Example(((order * 0.1).astype(np.float32),), {"window": 2, "stride": 2})


max_pool = Op(
    "max_pool",
    _shape,
    _bind_max,
    gradients=(_emit_max_grad,),
    flops=lambda inputs, out, attrs: _places(attrs, out),
    example=_example,
    keeps_format=True,
    work=lambda inputs, out, attrs: _border(inputs[0], attrs),
    pointwise=False,
)
"""Largest value of every window; a border of -infinity where there is `padding`.

`window`, `stride` (the window's if not given) and `padding` are one number or (of the height, of
the width); `ceil_mode` has a last window that is not full.
"""


def _share(pool: Pool) -> np.float32 | FloatArray:
    if not pool.ceil and (pool.counts_padding or pool.padding == (0, 0)):
        return np.float32(1.0 / size(pool.window))
    return pool.shares()


def _bind_average(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    pool = pool_of(inputs[0].shape, attrs)
    framed, frame = _framed(pool, inputs[0], work, 0.0)
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
    spread, back, rest = _spread(pool, out, work)
    windows, share, part = list(pool.windows(spread)), _share(pool), _like(grad, rest)

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
    work=lambda inputs, out, attrs: size(inputs[0]) + _border(out, attrs),
    pointwise=False,
)
average_pool = Op(
    "average_pool",
    _shape,
    _bind_average,
    gradients=(_emit_average_grad,),
    flops=lambda inputs, out, attrs: _places(attrs, out),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 6, 6)).astype(np.float32),), {"window": 3, "stride": 2}
    ),
    work=lambda inputs, out, attrs: _border(inputs[0], attrs),
    pointwise=False,
)
"""Mean of every window; attributes as of `max_pool`, and `count_include_pad` as in torch."""
