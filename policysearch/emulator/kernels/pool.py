"""Max pooling: in the extension `_pooling` where it has a loop for the window, else in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import (
    Bind,
    Kernel,
    Offer,
    Run,
    Work,
    bind_stored,
    like,
    no_work,
)
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.ops.pool_geometry import Pool, pool_of
from policysearch.rounding.extension import extension

_pooling = extension("emulator.kernels._pooling")


def _is_served(pool: Pool) -> bool:
    """Whether the windows are square, of extent 2 or 3, without gaps, and need no border."""
    alike = len(pool.axes) == 2 and len(set(pool.window)) == len(set(pool.stride)) == 1
    return (
        alike
        and pool.reach == pool.window
        and pool.window[0] in (2, 3)
        and pool.padding == (0, 0)
        and not pool.ceil
    )


def _max_pool(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """The extension has loops for windows of 2 and 3, and a maximum where numpy's is known."""
    function, pool = getattr(_pooling, "max_pool", None), pool_of(inputs[0], attrs)
    if function is None or not _is_served(pool):
        return None
    return Kernel(bind_stored(function, pool.window[0], pool.stride[0]))


def _max_pool_grad(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """As `_max_pool`; only numpy sums where windows overlap."""
    pool = pool_of(out, attrs)
    if _pooling is None or not _is_served(pool) or not pool.apart:
        return None
    return Kernel(bind_stored(_pooling.max_pool_grad, pool.window[0], pool.stride[0]))


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {"max_pool": _max_pool, "max_pool_grad": _max_pool_grad}
)


def _bind_max(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
    first, *rest = pool_of(inputs[0].shape, attrs).places(inputs[0])

    def run() -> None:
        np.maximum(first, rest[0] if rest else first, out=out)
        for values in rest[1:]:
            np.maximum(out, values, out=out)

    return run


def _bind_max_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, image, y = inputs
    pool = pool_of(image.shape, attrs)
    places = list(zip(pool.places(image), pool.places(out), strict=True))
    left, hit = like(grad, work), np.empty_like(grad, np.bool_)

    def run() -> None:
        if len(places) * y.size < out.size:
            out.fill(0.0)
        np.copyto(left, grad)
        for values, target in places:
            np.equal(values, y, out=hit)
            np.multiply(left, hit, out=target)
            np.subtract(left, target, out=left)

    return run


def _bind_average(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    pool = pool_of(inputs[0].shape, attrs)
    (first, *rest), counts = pool.places(inputs[0]), pool.counts()

    def run() -> None:
        np.copyto(out, first)
        for values in rest:
            np.add(out, values, out=out)
        np.divide(out, counts, out=out)

    return run


def _bind_average_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    pool, grad, share = pool_of(out.shape, attrs), inputs[0], like(inputs[0], work)
    places, counts = [*pool.places(out)][::-1], pool.counts()

    def run() -> None:
        out.fill(0.0)
        np.divide(grad, counts, out=share)
        for target in places:
            np.add(target, share, out=target)

    return run


def _pool(
    bind: Bind, *, of_output: bool = False, apart: bool = False, work: Work = no_work
) -> Offer:
    """Return the offer for images without a border, to pools whose windows are `apart` if asked."""

    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        pool = pool_of(out if of_output else inputs[0], attrs)
        served = pool.framed == pool.image and (pool.apart or not apart)
        return Kernel(bind, work) if served else None

    return offer


def _first_input(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(inputs[0])


NUMPY_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "max_pool": _pool(_bind_max),
        "max_pool_grad": _pool(_bind_max_grad, of_output=True, apart=True, work=_first_input),
        "average_pool": _pool(_bind_average),
        "average_pool_grad": _pool(_bind_average_grad, of_output=True, work=_first_input),
    }
)
