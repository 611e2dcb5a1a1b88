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
    # core_nvfp4.cuh, compute_decoding_scaling_factor: the factor of the tensor is made first.
    factor = tensor * (np.float32(1.0) / np.float32(attrs["maximum"]))
    return np.minimum(largest * factor, LARGEST)


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
"""amax * (tensor scale * (1 / `maximum`)) per block, as Transformer Engine multiplies; the node's
format (float8_e4m3fn) rounds it.
"""


def inverse(scales: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Return 1 / scale."""
    return np.float32(1.0) / scales[0]


inverse_scale = Op(
    "inverse_scale",
    same_shape,
    inverse,
    example=lambda rng: Example((rng.uniform(0.5, 2.0, (3, 2)).astype(np.float32),)),
    placement="fp32",
)
"""1 / scale: what values are multiplied by after the cast, where the scale multiplies before it."""


def spread_scales(scales: FloatArray, shape: Shape, *cuts: int) -> FloatArray:
    """Return the scale of every element of `shape`.

    `cuts` are an axis and the extent of a block along it, and maybe another such pair.
    """
    for axis, block in zip(cuts[::2], cuts[1::2], strict=True):
        whole = np.repeat(scales, block, axis)
        scales = whole[(slice(None),) * axis + (slice(shape[axis]),)]
    return scales


def cuts_of(attrs: Attrs) -> tuple[int, ...]:
    """Return an axis and the extent of a block along it, and maybe another such pair."""
    return (attrs["axis"], attrs["block"], *attrs.get("across", ()))


def _scaled_example(rng: np.random.Generator) -> Example:
    """Return values with the scale of each block of four."""
    values = rng.standard_normal((3, 5)).astype(np.float32)
    return Example(
        (values, rng.uniform(0.5, 2.0, (3, 2)).astype(np.float32)), {"axis": 1, "block": 4}
    )


def cast_factors(scales: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Return what the values of each block are multiplied by before the cast (see `block_cast`)."""
    of_blocks, *tensor = scales
    if attrs.get("multiplies"):
        return of_blocks
    one = np.float32(1.0)
    divisor = of_blocks * (one / tensor[0]) if tensor else of_blocks
    return np.minimum(one / divisor, LARGEST)


def _block_cast(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, *scales = inputs
    return x * spread_scales(cast_factors(scales, attrs), x.shape, *cuts_of(attrs))


block_cast = Op(
    "block_cast",
    same_shape,
    _block_cast,
    example=_scaled_example,
    placement="fp32",
    converts=True,
)
"""x / (block scale / tensor scale), rounded to the node's format by the emulator.

Inputs x, the scale of each `block` elements along `axis`, and (NVFP4) the tensor scale, () or one
per row. `across`: (axis, block) of a second cut, for square blocks. `multiplies`: the scale
multiplies before the cast instead (1 x 128 and 128 x 128 blocks).
"""


def dequantised_factors(scales: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Return what the values of each block, or of all, are multiplied by after the cast."""
    if "axis" not in attrs:
        return np.float32(1.0) / scales[0]
    return scales[0] * (np.float32(1.0) / scales[1]) if len(scales) > 1 else scales[0]


def _dequantised_values(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, *scales = inputs
    factors = dequantised_factors(scales, attrs)
    return x * (spread_scales(factors, x.shape, *cuts_of(attrs)) if "axis" in attrs else factors)


dequantise = Op(
    "dequantise",
    same_shape,
    _dequantised_values,
    example=_scaled_example,
    placement="fp32",
    converts=True,
)
"""The values that a scaled copy stands for, rounded to the node's format.

Inputs the copy and its scale: that of the tensor or of rows, which multiplied before the cast; or,
with `axis`, those of blocks as `block_cast` has them, and (NVFP4) the tensor scale.
"""
