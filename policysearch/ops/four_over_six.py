"""NVFP4 scales that bring the largest value of a block to 4 or to 6, whichever loses less.

Source: Transformer Engine d0067d0d, `custom_recipes/reference_nvfp4.py`
(`_quantize_blockwise_4over6_reference`; its default error, of absolute values, in float32).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size
from policysearch.ops.block_scale import cuts_of, spread_scales
from policysearch.ops.scale import LARGEST
from policysearch.rounding.rounder import quantise

BOUND = 256.0
"""The largest scale of a block that is brought to 6: one that is brought to 4 has half as much
again, and float8_e4m3fn ends at 448."""

_SIX, _ONE = np.float32(6.0), np.float32(1.0)


def _block_sums(errors: FloatArray, axis: int, block: int, *, halves: bool) -> FloatArray:
    """Return the sum of each block along an axis: first to last, or `halves` after halves."""
    short = -errors.shape[axis] % block
    padded = np.pad(errors, [(0, short if i == axis else 0) for i in range(errors.ndim)])
    lead, rest = padded.shape[:axis], padded.shape[axis + 1 :]
    cut = np.moveaxis(padded.reshape(*lead, -1, block, *rest), axis + 1, 0)
    while halves and len(cut) > 1:
        cut = cut[: len(cut) // 2] + cut[len(cut) // 2 :]
    total: FloatArray = cut[0]
    for each in cut[1:]:
        total = total + each
    return total


def _lost(x: FloatArray, scales: FloatArray, of: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Return what each block loses under these scales; `of` are the tensor's scale and amax."""
    (tensor, amax), cuts = of, cuts_of(attrs)
    factors = np.minimum(_ONE / (scales * (_ONE / tensor)), LARGEST)
    scaled = np.clip(x * spread_scales(factors, x.shape, *cuts), -_SIX, _SIX)
    kept = quantise(scaled, format_named("float4_e2m1fn")) * spread_scales(scales, x.shape, *cuts)
    errors = np.abs(kept * amax / (_SIX * np.float32(BOUND)) - x)
    # as the kernels sum them: along the rows of a block, then its rows in a tree
    found = _block_sums(errors, *cuts[-2:], halves=False)
    return _block_sums(found, *cuts[:2], halves=True) if cuts[2:] else found


def _four_over_six(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, largest, *of = inputs
    base = largest / _SIX * of[0]
    top = np.float32(format_named("float8_e4m3fn").max)
    four, six = (
        quantise(np.minimum(base * np.float32(share), top), format_named("float8_e4m3fn"))
        for share in (1.5, 1.0)
    )
    return np.where(_lost(x, four, of, attrs) < _lost(x, six, of, attrs), four, six)


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[1]


def _example(rng: np.random.Generator) -> Example:
    x = rng.standard_normal((3, 32)).astype(np.float32)
    largest = np.abs(x).reshape(3, 2, 16).max(2)
    amax = np.array(np.abs(x).max(), np.float32)
    tensor = np.array(np.float32(BOUND) * _SIX / amax, np.float32)
    return Example((x, largest, tensor, amax), {"axis": 1, "block": 16})


four_over_six = Op(
    "four_over_six",
    _shape,
    _four_over_six,
    flops=lambda inputs, out, attrs: 12 * size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
)
"""The scale of each block in float8_e4m3fn, of x, the largest of its blocks, the scale of the
tensor, BOUND * 6 / amax, and that amax; cut as `block_cast` is.
"""
