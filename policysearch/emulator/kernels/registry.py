"""Which op has a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from policysearch.emulator.kernels import (
    conv,
    elementwise,
    gelu,
    layer_norm,
    permute,
    pool,
    silu,
    softmax,
)
from policysearch.emulator.kernels.kernel import Kernel, Offer
from policysearch.graph import Attrs, Op, Shape

KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        **conv.KERNELS,
        **elementwise.KERNELS,
        **gelu.KERNELS,
        **layer_norm.KERNELS,
        **permute.KERNELS,
        **pool.KERNELS,
        **silu.KERNELS,
        **softmax.KERNELS,
    }
)
"""By the name of the op."""


def kernel_of(op: Op, inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """Return the kernel with the bits of `op` for these shapes; None where there is none."""
    offer = KERNELS.get(op.name)
    return offer(inputs, out, attrs) if offer else None
