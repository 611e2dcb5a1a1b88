"""GELU and its gradient in the C extension `_gelu`: the bits of numpy, whose tanh and exp it calls.

The value of tanh is computed where the output goes, and the rest of the op in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Bind, Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray
from policysearch.layout import stored_flat
from policysearch.ops import gelu
from policysearch.rounding.extension import extension

_gelu = extension("emulator.kernels._gelu")

CONSTANTS = np.array(
    [
        *(gelu.TANH_CUBIC, gelu.TANH_SCALE, gelu.SLOPE_CUBIC, gelu.SLOPE_SCALE),
        *(gelu.NORMAL.farthest, *gelu.NORMAL.above, *gelu.NORMAL.below),
        *(gelu.SLOPE.farthest, *gelu.SLOPE.above, *gelu.SLOPE.below),
    ],
    np.float32,
).tobytes()


def _bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
    x, t = stored_flat(inputs[0]), stored_flat(out)

    def run_tanh() -> None:
        _gelu.inner_tanh(x, t, CONSTANTS)
        np.tanh(t, out=t)
        _gelu.outer_tanh(x, t, CONSTANTS)

    return run_tanh if attrs["form"] == "tanh" else partial(_gelu.gelu_erf, x, t, CONSTANTS)


def _bind_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, x, t = (stored_flat(array) for array in (*inputs, out))

    def run_tanh() -> None:
        _gelu.inner_tanh(x, t, CONSTANTS)
        np.tanh(t, out=t)
        _gelu.outer_tanh_grad(grad, x, t, CONSTANTS)

    run_erf = partial(_gelu.gelu_erf_grad, grad, x, t, CONSTANTS)
    return run_tanh if attrs["form"] == "tanh" else run_erf


def _offer(bind: Bind) -> Offer:
    return lambda inputs, out, attrs: Kernel(bind) if _gelu else None


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {"gelu": _offer(_bind), "gelu_grad": _offer(_bind_grad)}
)
"""By the name of the op."""
