"""The scale of a narrow tensor, from the largest magnitudes of this step or of earlier ones.

A scale s multiplies before the cast (q = round(x * s)), so a product of scaled operands carries
the product of their scales, which `descale` divides out in the epilogue. Rules: Transformer
Engine `common/recipe/recipe_common.cuh` (current scaling) and `common/recipe/delayed_scaling.cu`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size

LARGEST = np.finfo(np.float32).max
_MANTISSA = np.int32(0x007FFFFF)


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _limited(scale: FloatArray, power_of_two: bool) -> FloatArray:
    """Return `scale` with infinity lowered to the largest float32, rounded down to a power of 2."""
    finite = np.minimum(scale, LARGEST)
    if power_of_two:
        finite = np.bitwise_and(finite.view(np.int32), ~_MANTISSA).view(np.float32)
    return finite


def _scale_of(largest: FloatArray, attrs: Attrs) -> FloatArray:
    ratio = np.float32(attrs["maximum"]) / largest / np.float32(2.0 ** attrs.get("margin", 0))
    return _limited(np.asarray(ratio, np.float32), attrs.get("power_of_two", False))


def _bind_tensor_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    largest = inputs[0]

    def run() -> None:
        usable = np.isfinite(largest) & (largest > 0)
        out[...] = np.where(usable, _scale_of(largest, attrs), np.float32(1.0))

    return run


tensor_scale = Op(
    "tensor_scale",
    _first,
    _bind_tensor_scale,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example((np.array(3.0, np.float32),), {"maximum": 448.0, "margin": 1}),
    placement="fp32",
)
"""`maximum` / amax / 2**`margin`; 1 where amax is 0, infinite or NaN, and at most the largest
float32. `power_of_two` rounds down to one.
"""


def _bind_delayed_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    history, old = inputs

    def run() -> None:
        largest = np.asarray(history.max() if attrs["amax"] == "max" else history[0])
        kept = old if old > 0 else np.float32(1.0)
        usable = np.isfinite(largest) and largest > 0
        out[()] = _scale_of(largest, attrs) if usable else kept

    return run


delayed_scale = Op(
    "delayed_scale",
    lambda inputs, attrs: (),
    _bind_delayed_scale,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example(
        (np.array([2.0, 0.5, 0.0], np.float32), np.array(8.0, np.float32)),
        {"maximum": 448.0, "amax": "max"},
    ),
    kind="reduce",
    placement="fp32",
)
"""The scale of this step from (amaxes of earlier steps [history], newest first; the last scale).

As `tensor_scale` of the largest ("max") or newest ("most_recent") amax; where that is 0, infinite
or NaN the last scale stays, 1 where there is none (0).
"""


def _bind_history(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    history, newest = inputs

    def run() -> None:
        out[1:] = history[:-1]
        out[0] = newest

    return run


amax_history = Op(
    "amax_history",
    _first,
    _bind_history,
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example((np.arange(4, dtype=np.float32), np.array(9.0, np.float32))),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
)
"""The history [history] with the newest amax () put first and the oldest dropped."""
