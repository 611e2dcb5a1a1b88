"""What every pooling does: shapes, and the border around an image that its windows reach over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import stored
from policysearch.ops.conv_geometry import pair
from policysearch.ops.pool_geometry import Pool, pool_of


def pooled_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape of a pooling's result: one number per window."""
    return (*inputs[0][:2], *pool_of(inputs[0], attrs).out)


def border_size(shape: Shape, attrs: Attrs) -> int:
    """Return the elements of an image with its border; 0 where it has none."""
    pool = pool_of(shape, attrs)
    return size(pool.border(shape)) if pool.has_border else 0


def places_read(attrs: Attrs, out: Shape) -> int:
    """Return the elements of all windows together."""
    return size(pair(attrs["window"])) * size(out)


def framed_image(
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


def scratch_like(array: FloatArray, work: FloatArray, part: int = 0) -> FloatArray:
    """Return the `part`-th stretch of `work` that has the shape and strides of `array`."""
    start = part * array.size
    return np.ndarray(array.shape, np.float32, work[start:], strides=array.strides)


def spread_target(
    pool: Pool, out: FloatArray, work: FloatArray
) -> tuple[FloatArray, Callable[[], object], FloatArray]:
    """Return where windows put their gradients, what brings them to `out`, the scratch left."""
    if not pool.has_border:
        return out, lambda: None, work
    shape = pool.border(out.shape)
    framed = stored(work[: size(shape)], shape)
    inner = pool.interior(framed)
    return framed, lambda: np.copyto(out, inner), work[size(shape) :]
