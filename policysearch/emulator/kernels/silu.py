"""SiLU and its gradient in the C extension `_silu`: the bits of numpy, whose tanh they call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import stored_flat
from policysearch.rounding.extension import extension

_silu = extension("emulator.kernels._silu")


def _bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
    x, t = stored_flat(inputs[0]), stored_flat(out)

    def run() -> None:
        _silu.inner(x, t)
        np.tanh(t, out=t)
        _silu.outer(x, t)

    return run


def _bind_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, x, result = (stored_flat(array) for array in (*inputs, out))
    t = work[: x.size]

    def run() -> None:
        _silu.inner(x, t)
        np.tanh(t, out=t)
        _silu.outer_grad(grad, x, t, result)

    return run


def _offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    return Kernel(_bind) if _silu else None


def _grad_offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    return Kernel(_bind_grad, lambda inputs, out, attrs: size(out)) if _silu else None


C_KERNELS: Mapping[str, Offer] = MappingProxyType({"silu": _offer, "silu_grad": _grad_offer})
"""By the name of the op."""
