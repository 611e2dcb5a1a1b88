"""Block scaling (MX and NVFP4): one scale per run of elements along the contraction.

Scales here multiply after the cast (x ~ q * scale), as both definitions have it. Sources: OCP
Microscaling Formats (MX) v1.0, section 6.3; Transformer Engine's `common/util/ptx.cuh`
(`float_to_e8m0`) and its NVFP4 reference quantiser.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size
from policysearch.ops.elementwise import same_shape
from policysearch.ops.scale import LARGEST

SUBNORMAL = 1 << 22
"""The bits of 2**-127, which E8M0 has and whose exponent field in float32 is 0."""


def _mx_scale(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """On the bits: the exponent field less emax."""
    (largest,) = inputs
    exponent = np.clip((largest.view(np.int32) >> 23) - np.int32(attrs["emax"]), 0, 254)
    scale = np.maximum(exponent << 23, SUBNORMAL).view(np.float32)
    return np.where(largest < np.inf, scale, np.float32(np.nan))


mx_scale = Op(
    "mx_scale",
    same_shape,
    _mx_scale,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example((rng.uniform(0.1, 9.0, (3, 2)).astype(np.float32),), {"emax": 8}),
    placement="fp32",
)
"""2**(floor(log2 amax) - `emax`) per block, within 2**-127 .. 2**127 (E8M0); `emax` is the
exponent of the element format's largest number, at least 0. An amax that is infinite or NaN gives
NaN.
"""


def _mx_rceil_scale(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """On the bits: a carry out of any mantissa moves into the exponent field."""
    ratio = inputs[0] * np.float32(1.0 / attrs["maximum"])
    bits = ratio.view(np.int32)
    exponent = np.minimum((bits + ((1 << 23) - 1)) >> 23, 254)
    scale = np.where(bits <= SUBNORMAL, SUBNORMAL, exponent << 23).view(np.float32)
    return np.where(np.isnan(ratio), np.float32(np.nan), scale)


mx_rceil_scale = Op(
    "mx_rceil_scale",
    same_shape,
    _mx_rceil_scale,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example(
        (rng.uniform(0.1, 9.0, (3, 2)).astype(np.float32),), {"maximum": 448.0}
    ),
    placement="fp32",
)
"""amax / `maximum` rounded up to a power of two, within 2**-127 .. 2**127 (E8M0): Transformer
Engine's rule for MXFP8, `maximum` being the element format's largest number, whose inverse in
float32 is multiplied with. An infinite amax gives 2**127, NaN gives NaN.
"""


def _nvfp4_scale(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    largest, tensor = inputs
    return np.minimum(largest / np.float32(attrs["maximum"]) * tensor, LARGEST)


nvfp4_scale = Op(
    "nvfp4_scale",
    same_shape,
    _nvfp4_scale,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example(
        (rng.uniform(0.1, 9.0, (3, 2)).astype(np.float32), np.array(300.0, np.float32)),
        {"maximum": 6.0},
    ),
    placement="fp32",
)
"""amax / `maximum` * tensor scale per block; the node's format (float8_e4m3fn) rounds it."""


def spread_scales(scales: FloatArray, shape: Shape, axis: int, block: int) -> FloatArray:
    """Return the scale of every element of `shape`, with one for each `block` along `axis`."""
    whole = np.repeat(scales, block, axis)
    return whole[(slice(None),) * axis + (slice(shape[axis]),)]


def _block_cast(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, scales, *tensor = inputs
    factors = np.minimum((tensor[0] if tensor else np.float32(1.0)) / scales, LARGEST)
    return x * spread_scales(factors, x.shape, attrs["axis"], attrs["block"])


block_cast = Op(
    "block_cast",
    same_shape,
    _block_cast,
    example=lambda rng: Example(
        (
            rng.standard_normal((3, 5)).astype(np.float32),
            rng.uniform(0.5, 2.0, (3, 2)).astype(np.float32),
        ),
        {"axis": 1, "block": 4},
    ),
    placement="fp32",
    converts=True,
)
"""x * (tensor scale / block scale), rounded to the node's format by the emulator.

Inputs x, the scale of each `block` elements along `axis`, and (NVFP4) the tensor scale ().
"""
