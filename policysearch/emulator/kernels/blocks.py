"""Passes over blocks in the C extension `_blocks`: largest values, scales, Hadamard transforms.

What is per block is small and stays numpy's. A block lies along one axis of the stored array; of
square ones the scales are spread along the second axis first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.dense import NUMPY_KERNELS
from policysearch.emulator.kernels.kernel import Kernel, Offer, Run, forward_kernel
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import stored, stored_flat, stored_shape
from policysearch.ops.block_products import TAKES_SCALES, matmul_blocks
from policysearch.ops.block_scale import (
    cast_factors,
    cuts_of,
    dequantised_factors,
    spread_scales,
)
from policysearch.ops.hadamard import RUN
from policysearch.rounding.extension import extension

_blocks = extension("emulator.kernels._blocks")

STORED_AXES = {2: (1, 0), 4: (3, 1, 0, 2)}
"""By axes of a tensor: which axis of the stored array each of them is (`policysearch.layout`)."""


def _around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return how a stored array lies around a logical axis: [outer, length, inner]."""
    at = STORED_AXES.get(len(shape), tuple(range(len(shape))))[axis]
    lengths = stored_shape(shape)
    return math.prod(lengths[:at]), lengths[at], math.prod(lengths[at + 1 :])


def _bind_amax(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    x, axes = inputs[0], attrs.get("axes")
    around = (1, x.size, 1) if axes is None else _around(x.shape, axes[0])
    block = attrs.get("block") or around[1]
    return partial(_blocks.largest, stored_flat(x), stored_flat(out), *around, block)


def _amax(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    axes = attrs.get("axes")
    served = size(inputs[0]) and (axes is None or len(axes) == 1)
    return Kernel(_bind_amax) if _blocks and served else None


def _bind_hadamard(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    x = inputs[0]
    around = _around(x.shape, attrs["axis"])
    return partial(_blocks.turned, stored_flat(x), stored_flat(out), *around, RUN)


def _hadamard(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    return Kernel(_bind_hadamard) if _blocks and size(out) else None


def _times(x: FloatArray, cuts: Sequence[int], out: FloatArray) -> Callable[[FloatArray], None]:
    """Return f(scales): it writes x, each value times the scale of its block, to `out`."""
    axis, block, *across = cuts
    around, flat, to = _around(x.shape, axis), stored_flat(x), stored_flat(out)

    def run(scales: FloatArray) -> None:
        spread = spread_scales(scales, x.shape, *across)
        _blocks.scaled(flat, np.ascontiguousarray(stored_flat(spread)), to, *around, block)

    return run


def _scaling_offer(factors_of: Callable[[Sequence[FloatArray], Attrs], FloatArray]) -> Offer:
    """Return the offer for x times what is made of the scales of its blocks."""

    def bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
        times, scales = _times(inputs[0], cuts_of(attrs), out), inputs[1:]
        return lambda: times(factors_of(scales, attrs))

    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        return Kernel(bind) if _blocks and "axis" in attrs and size(out) else None

    return offer


def _matmul_blocks(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    product = NUMPY_KERNELS["matmul"](inputs[:2], out, attrs)
    restored = sum(map(size, inputs[:2]))
    if not _blocks or product is None or not all(map(size, inputs)):
        return None

    def bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
        if attrs.get(TAKES_SCALES):
            return forward_kernel(matmul_blocks).bind(inputs, out, attrs, work)
        operands, start = list(inputs[:2]), 0
        calls: list[Run] = []
        for (position, *cuts), scales in zip(attrs["blocks"], inputs[2:], strict=True):
            given = operands[position]
            operands[position] = stored(work[start : start + given.size], given.shape)
            start += given.size
            calls.append(partial(_times(given, cuts, operands[position]), scales))
        calls.append(product.bind(operands, out, attrs, work[restored:]))
        return lambda: [call() for call in calls]

    return Kernel(bind, lambda *shapes: restored + product.work(shapes[0][:2], *shapes[1:]))


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "amax": _amax,
        "block_cast": _scaling_offer(cast_factors),
        "dequantise": _scaling_offer(dequantised_factors),
        "hadamard": _hadamard,
        "matmul_blocks": _matmul_blocks,
    }
)
"""By the name of the op."""
