"""Softmax and its gradient in the C extension `_softmax`: the bits of numpy, whose exp it calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray, Shape
from policysearch.layout import around_last_axis, stored_view
from policysearch.rounding.extension import extension

_softmax = extension("emulator.kernels._softmax")

BLOCK = 16384
"""Floats that go through numpy's exp at a time: they stay in a second-level cache."""


TURNED = 16
"""Rows that the extension turns at a time, where their numbers are apart in memory."""


def _block_rows(length: int) -> int:
    return max(1, BLOCK // length)


def _bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
    x, result = stored_view(inputs[0]), stored_view(out)
    outer, length, inner = around = around_last_axis(out.shape)
    calls: list[tuple[Callable[[], object], FloatArray, Callable[[], object]]] = []
    for first in range(0, outer * inner, _block_rows(length)):
        some = first, min(first + _block_rows(length), outer * inner)
        y = work[: (some[1] - first) * length]
        shift = partial(_softmax.shift, x, y, *around, *some)
        calls.append((shift, y, partial(_softmax.share, y, result, *around, *some)))

    def run() -> None:
        for shift, y, share in calls:
            shift()
            np.exp(y, out=y)
            share()

    def run_and_fill() -> None:
        empty = np.isneginf(inputs[0].max(axis=-1))  # before `run`, as the output may be the input
        run()
        out[empty] = 0.0

    return run_and_fill if attrs.get("empty_rows") else run


def _bind_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    arrays = [stored_view(array) for array in (*inputs, out)]
    outer, length, inner = around_last_axis(out.shape)
    return partial(_softmax.softmax_grad, *arrays, work, outer, length, inner, 0, outer * inner)


def _offers(attrs: Attrs) -> bool:
    """Return whether the extension is there and the axis is the last, the one that it takes."""
    return _softmax is not None and "axis" not in attrs


def _softmax_offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    needed = _block_rows(out[-1]) * out[-1]
    return Kernel(_bind, lambda inputs, out, attrs: needed) if _offers(attrs) else None


def _grad_offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    needed = 2 * TURNED * out[-1]
    return Kernel(_bind_grad, lambda inputs, out, attrs: needed) if _offers(attrs) else None


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {"softmax": _softmax_offer, "softmax_grad": _grad_offer}
)
"""By the name of the op."""
