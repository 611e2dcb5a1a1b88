"""Block scaling (MX and NVFP4): one scale per run of elements along the contraction.

Scales here multiply after the cast (x ~ q * scale), as both definitions have it. Sources: OCP
Microscaling Formats (MX) v1.0, section 6.3; Transformer Engine's `common/util/ptx.cuh`
(`float_to_e8m0`) and its NVFP4 reference quantiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size
from policysearch.ops.scale import LARGEST


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _bind_mx_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    largest, emax = inputs[0].view(np.int32), attrs["emax"]
    code, infinite = out.view(np.int32), np.float32(np.inf).view(np.int32)

    def run() -> None:
        """On the bits: the exponent field less emax, where 0 stands for the subnormal 2**-127."""
        np.right_shift(largest, 23, out=code)
        np.subtract(code, emax, out=code)
        np.clip(code, 0, 254, out=code)
        np.left_shift(code, 23, out=code)
        np.maximum(code, 1 << 22, out=code)
        np.copyto(out, np.nan, where=largest >= infinite)

    return run


mx_scale = Op(
    "mx_scale",
    _first,
    _bind_mx_scale,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example((rng.uniform(0.1, 9.0, (3, 2)).astype(np.float32),), {"emax": 8}),
    placement="fp32",
)
"""2**(floor(log2 amax) - `emax`) per block, within 2**-127 .. 2**127 (E8M0); `emax` is the
exponent of the element format's largest number, at least 0. An amax that is infinite or NaN gives
NaN.
"""


def _bind_mx_rceil_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    largest, share = inputs[0], np.float32(1.0 / attrs["maximum"])
    code = out.view(np.int32)

    def run() -> None:
        """On the bits: a carry out of any mantissa moves into the exponent field."""
        np.multiply(largest, share, out=out)
        subnormal = code <= 1 << 22
        unknown = np.isnan(out)
        np.add(code, (1 << 23) - 1, out=code)
        np.right_shift(code, 23, out=code)
        np.minimum(code, 254, out=code)
        np.left_shift(code, 23, out=code)
        np.copyto(code, 1 << 22, where=subnormal)
        np.copyto(out, np.nan, where=unknown)

    return run


mx_rceil_scale = Op(
    "mx_rceil_scale",
    _first,
    _bind_mx_rceil_scale,
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


def _bind_nvfp4_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    largest, tensor = inputs
    maximum = np.float32(attrs["maximum"])

    def run() -> None:
        np.divide(largest, maximum, out=out)
        np.multiply(out, tensor, out=out)
        np.minimum(out, LARGEST, out=out)

    return run


nvfp4_scale = Op(
    "nvfp4_scale",
    _first,
    _bind_nvfp4_scale,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example(
        (rng.uniform(0.1, 9.0, (3, 2)).astype(np.float32), np.array(300.0, np.float32)),
        {"maximum": 6.0},
    ),
    placement="fp32",
)
"""amax / `maximum` * tensor scale per block; the node's format (float8_e4m3fn) rounds it."""
