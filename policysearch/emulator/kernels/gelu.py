"""GELU and its gradient in the C extension `_gelu`: the bits of numpy, whose tanh and exp it calls.

The value of tanh is computed where the output goes, and the rest of the op in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel, Offer
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import stored_view
from policysearch.ops import gelu

try:
    import policysearch.emulator.kernels._gelu as _gelu
except ImportError:
    _gelu = None

CONSTANTS = np.array(
    [
        *(gelu.TANH_CUBIC, gelu.TANH_SCALE, gelu.SLOPE_CUBIC, gelu.SLOPE_SCALE),
        *(gelu.DENSITY, gelu.FARTHEST, *gelu.ERF),
    ],
    np.float32,
).tobytes()


def _flat(array: FloatArray) -> FloatArray:
    return stored_view(array).reshape(-1)


def _bind(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, t = _flat(inputs[0]), _flat(out)
    inner = getattr(_gelu, f"inner_{attrs['form']}")

    def run() -> None:
        inner(x, t, CONSTANTS)
        np.tanh(t, out=t)
        _gelu.outer(x, t, CONSTANTS)

    return run


def _bind_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, x, t = (_flat(array) for array in (*inputs, out))
    u = work[: x.size]

    def run_tanh() -> None:
        _gelu.inner_tanh(x, t, CONSTANTS)
        np.tanh(t, out=t)
        _gelu.outer_tanh_grad(grad, x, t, CONSTANTS)

    def run_erf() -> None:
        _gelu.inner_erf_grad(x, t, u, CONSTANTS)
        np.tanh(t, out=t)
        np.exp(u, out=u)
        _gelu.outer_erf_grad(grad, x, t, u, CONSTANTS)

    return run_tanh if attrs["form"] == "tanh" else run_erf


def _offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    return Kernel(_bind) if _gelu else None


def _grad_work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(out) if attrs["form"] == "erf" else 0


def _grad_offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    return Kernel(_bind_grad, _grad_work) if _gelu else None


KERNELS: Mapping[str, Offer] = MappingProxyType({"gelu": _offer, "gelu_grad": _grad_offer})
"""By the name of the op."""
