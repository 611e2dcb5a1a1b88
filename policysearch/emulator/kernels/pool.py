"""Max pooling: in the extension `_pooling` where it has a loop for the window, else in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel, Offer, Run, bind_stored, like
from policysearch.extensions import extension
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.ops.pool import Pool, pool_of

_pooling = extension("emulator.kernels._pooling")


def _is_served(pool: Pool) -> bool:
    """Whether the windows are square, of extent 2 or 3, and need no border."""
    alike = len(set(pool.window)) == len(set(pool.stride)) == 1
    return alike and pool.window[0] in (2, 3) and pool.padding == (0, 0) and not pool.ceil


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


def _without_border(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    pool = pool_of(inputs[0], attrs)
    return Kernel(_bind_max) if pool.framed == pool.image else None


def _apart_without_border(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    pool = pool_of(out, attrs)
    if pool.framed != pool.image or not pool.apart:
        return None
    return Kernel(_bind_max_grad, lambda inputs, out, attrs: size(inputs[0]))


NUMPY_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {"max_pool": _without_border, "max_pool_grad": _apart_without_border}
)
