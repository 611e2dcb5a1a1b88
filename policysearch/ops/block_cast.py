"""Casts with one scale per run of elements along the contraction (MX and NVFP4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size
from policysearch.ops.amax import in_blocks
from policysearch.ops.scale import LARGEST


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def scaling(x: FloatArray, scales: FloatArray, out: FloatArray, attrs: Attrs) -> Callable[[], None]:
    """Return the function that sets `out` to `x` times the scale of each block."""
    axis, block = attrs["axis"], attrs["block"]
    parts = [
        (part, np.expand_dims(scales[at], axis + 1), result)
        for (part, at), (result, _) in zip(
            in_blocks(x, axis, block), in_blocks(out, axis, block), strict=True
        )
    ]

    def run() -> None:
        for part, factor, result in parts:
            np.multiply(part, factor, out=result)

    return run


def _bind_block_cast(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, scales = inputs[:2]
    tensor = inputs[2] if len(inputs) > 2 else np.float32(1.0)
    factors = np.ndarray(scales.shape, np.float32, work, strides=scales.strides)
    scale = scaling(x, factors, out, attrs)

    def run() -> None:
        np.divide(tensor, scales, out=factors)
        np.minimum(factors, LARGEST, out=factors)
        scale()

    return run


block_cast = Op(
    "block_cast",
    _first,
    _bind_block_cast,
    example=lambda rng: Example(
        (
            rng.standard_normal((3, 5)).astype(np.float32),
            rng.uniform(0.5, 2.0, (3, 2)).astype(np.float32),
        ),
        {"axis": 1, "block": 4},
    ),
    placement="fp32",
    converts=True,
    work=lambda inputs, out, attrs: size(inputs[1]),
)
"""x * (tensor scale / block scale), rounded to the node's format by the emulator.

Inputs x, the scale of each `block` elements along `axis`, and (NVFP4) the tensor scale ().
"""
