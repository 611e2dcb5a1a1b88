"""Max pooling in the C extension `_pooling`, with the bits of numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from policysearch.emulator.kernels.kernel import Kernel, Offer, bind_stored
from policysearch.graph import Attrs, Shape

try:
    import policysearch.emulator.kernels._pooling as _pooling
except ImportError:
    _pooling = None


def _max_pool(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """The extension has loops for windows of 2 and 3, and a maximum where numpy's is known."""
    function, k = getattr(_pooling, "max_pool", None), attrs["window"]
    if function is None or k not in (2, 3):
        return None
    return Kernel(bind_stored(function, k, attrs.get("stride", k)))


def _max_pool_grad(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """As `_max_pool`; only numpy sums where windows overlap."""
    k, s = attrs["window"], attrs.get("stride", attrs["window"])
    if _pooling is None or k not in (2, 3) or s < k:
        return None
    return Kernel(bind_stored(_pooling.max_pool_grad, k, s))


KERNELS: Mapping[str, Offer] = MappingProxyType(
    {"max_pool": _max_pool, "max_pool_grad": _max_pool_grad}
)
"""By the name of the op."""
