"""Max pooling in the C extension `_pooling`, with the bits of numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from policysearch.emulator.kernels.kernel import Kernel, Offer, bind_stored
from policysearch.extensions import extension
from policysearch.graph import Attrs, Shape
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
"""By the name of the op."""
