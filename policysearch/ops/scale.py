"""The scale of a narrow tensor, from the largest magnitudes of this step or of earlier ones.

A scale s multiplies before the cast (q = round(x * s)), so a product of scaled operands carries
the product of their scales, which `descale` divides out in the epilogue. Rules: Transformer
Engine `common/recipe/recipe_common.cuh` (current scaling) and `common/recipe/delayed_scaling.cu`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, size
from policysearch.ops.elementwise import same_shape, ufunc

LARGEST = np.finfo(np.float32).max
SMALLEST = np.sqrt(np.finfo(np.float32).tiny)
_MANTISSA = np.int32(0x007FFFFF)


def _scale_of(largest: FloatArray, attrs: Attrs) -> FloatArray:
    ratio = np.float32(attrs["maximum"]) / largest / np.float32(2.0 ** attrs.get("margin", 0))
    finite = np.where(np.isinf(ratio), np.float32(attrs.get("limit", LARGEST)), ratio)
    if attrs.get("power_of_two", False):
        finite = np.bitwise_and(finite.view(np.int32), ~_MANTISSA).view(np.float32)
    return finite


def _tensor_scale(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (largest,) = inputs
    if attrs.get("divides"):
        scale = largest * np.float32(1.0 / attrs["maximum"]) * np.float32(2.0 ** attrs["margin"])
        return np.where(scale < SMALLEST, np.float32(1.0), scale)
    usable = np.isfinite(largest) & (largest > 0)
    return np.where(usable, _scale_of(largest, attrs), np.float32(1.0))


tensor_scale = Op(
    "tensor_scale",
    same_shape,
    _tensor_scale,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example((np.array(3.0, np.float32),), {"maximum": 448.0, "margin": 1}),
    placement="fp32",
)
"""`maximum` / amax / 2**`margin`; 1 where amax is 0, infinite or NaN. Where that is infinite it is
`limit`, the largest float32 unless given. `power_of_two` rounds down to one. One that `divides` is
amax times 1 / `maximum`, as XLA has the quotient of qwix; 1 where it is below the root of the
smallest normal float32.
"""


def _delayed_scale(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    history, old = inputs
    # delayed_scaling.cu: `fmaxf` passes over NaN, which is left only where all are NaN.
    largest = np.fmax.reduce(history) if attrs["amax"] == "max" else history[0]
    usable = np.isfinite(largest) & (largest > 0)
    return np.where(usable, _scale_of(largest, attrs), np.where(old > 0, old, np.float32(1.0)))


delayed_scale = Op(
    "delayed_scale",
    lambda inputs, attrs: (),
    _delayed_scale,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example(
        (np.array([2.0, 0.5, 0.0], np.float32), np.array(8.0, np.float32)),
        {"maximum": 448.0, "amax": "max"},
    ),
    kind="reduce",
    placement="fp32",
)
"""The scale of this step from (amaxes of earlier steps [history], newest first; the last scale).

As `tensor_scale` of the largest ("max"; NaN is passed over) or newest ("most_recent") amax; where
that is 0, infinite or NaN the last scale stays, 1 where there is none (0).
"""


def _amax_history(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    history, newest = inputs
    # delayed_scaling.cu: `if (last_amax != 0)`, else the history stays as it is.
    return np.where(newest != 0, np.concatenate([newest.reshape(1), history[:-1]]), history)


amax_history = Op(
    "amax_history",
    same_shape,
    _amax_history,
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example((np.arange(4, dtype=np.float32), np.array(9.0, np.float32))),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
)
"""The history [history] with the newest amax () put first and the oldest dropped; as it was where
the newest is 0, which a tensor that was not computed has too.
"""


scaled_cast = Op(
    "scaled_cast",
    same_shape,
    ufunc(np.multiply),
    example=lambda rng: Example(
        (rng.standard_normal((3, 5)).astype(np.float32), np.array(16.0, np.float32))
    ),
    placement="fp32",
    converts=True,
    in_place=(0,),
)
"""x * scale, rounded to the node's format by the emulator as every node's result is."""


def _descale(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    y, *scales = inputs
    swaps = attrs.get("swap", (False,) * len(scales))
    one: FloatArray | np.float32 = np.float32(1.0)
    factor = one
    for scale in scales:
        if not scale.ndim:
            factor = factor * (one / scale)
    y = y * factor
    for scale, swap in zip(scales, swaps, strict=True):
        if scale.ndim:
            y = y * (one / (scale.swapaxes(*attrs["axes"]) if swap else scale))
    return y


descale = Op(
    "descale",
    same_shape,
    _descale,
    flops=lambda inputs, out, attrs: size(out),
    example=lambda rng: Example(
        (
            rng.standard_normal((3, 5)).astype(np.float32),
            rng.uniform(0.5, 2.0, (3, 1)).astype(np.float32),
            rng.uniform(0.5, 2.0, (5, 1)).astype(np.float32),
        ),
        {"axes": (0, 1), "swap": (False, True)},
    ),
    placement="fp32",
    in_place=(0,),
)
"""A product's result times the inverse of each operand's scale, in float32.

Scalar scales join in one factor; a scale per row or column has extent 1 along the other axes.
`swap` says for each scale whether the two `axes` trade places first: an operand's scale is kept
in the layout of the operand.
"""
