"""Tensor scaling for narrow formats: amax, scale, scaled cast, and taking the scale out again.

A scale s multiplies before the cast (q = round(x * s)), so a product of scaled operands carries
the product of their scales, which `descale` divides out in the epilogue. Rules: Transformer
Engine `common/recipe/recipe_common.cuh` (current scaling) and `common/recipe/delayed_scaling.cu`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size

LARGEST = np.finfo(np.float32).max
_MANTISSA = np.int32(0x007FFFFF)


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _amax_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    axes, block = attrs.get("axes"), attrs.get("block", 0)
    if axes is None:
        return ()
    kept = [-(-extent // block) if block else 1 for extent in inputs[0]]
    return tuple(kept[i] if i in axes else extent for i, extent in enumerate(inputs[0]))


def in_blocks(x: FloatArray, axis: int, block: int) -> list[tuple[FloatArray, tuple[slice, ...]]]:
    """Return views of `x` with `axis` cut in two, [blocks, elements], and the blocks' places.

    One view holds the whole blocks, a second one the shorter block at the end, if any.
    """
    extent, lead = x.shape[axis], (slice(None),) * axis
    whole = extent // block
    found = []
    for first, count, length in ((0, whole, block), (whole * block, 1, extent - whole * block)):
        if count and length:
            part = x[(*lead, slice(first, first + count * length))]
            shape = (*x.shape[:axis], count, length, *x.shape[axis + 1 :])
            step = x.strides[axis]
            strides = (*x.strides[:axis], step * length, step, *x.strides[axis + 1 :])
            view = as_strided(part, shape, strides)
            found.append((view, (*lead, slice(first // block, first // block + count))))
    return found


def _bind_amax(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """The larger of max and -min: no array of absolute values, and NaN comes through."""
    x, axes, block = inputs[0], attrs.get("axes"), attrs.get("block", 0)
    lowest = np.ndarray(out.shape, np.float32, work, strides=out.strides)
    if axes is None:
        flat = x.ravel(order="K")

        def whole() -> None:
            out[()] = abs(np.maximum(np.maximum.reduce(flat), -np.minimum.reduce(flat)))

        return whole
    if block:
        axis = axes[0]
        parts = [(part, axis + 1, out[at], lowest[at]) for part, at in in_blocks(x, axis, block)]
    else:
        parts = [(x, axes, out, lowest)]

    def run() -> None:
        for part, over, high, low in parts:
            np.maximum.reduce(part, axis=over, keepdims=not block, out=high)
            np.minimum.reduce(part, axis=over, keepdims=not block, out=low)
        np.negative(lowest, out=lowest)
        np.maximum(out, lowest, out=out)
        np.absolute(out, out=out)  # zeros may have come out negative

    return run


amax = Op(
    "amax",
    _amax_shape,
    _bind_amax,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example((rng.standard_normal((3, 5)).astype(np.float32),)),
    kind="reduce",
    placement="fp32",
    work=lambda inputs, out, attrs: size(out),
)
"""Largest |x|: of the tensor -> (), or over `axes` (kept with extent 1), or, with `block`, over
each run of `block` elements along the one axis in `axes` (the last may be shorter). NaN wins.
"""


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


def _bind_scaled_cast(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, scale = inputs
    return lambda: np.multiply(x, scale, out=out)


scaled_cast = Op(
    "scaled_cast",
    _first,
    _bind_scaled_cast,
    example=lambda rng: Example(
        (rng.standard_normal((3, 5)).astype(np.float32), np.array(16.0, np.float32))
    ),
    placement="fp32",
    converts=True,
    in_place=(0,),
)
"""x * scale, rounded to the node's format by the emulator as every node's result is."""


def _bind_descale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    y, scales = inputs[0], inputs[1:]
    scalars = [scale for scale in scales if not scale.ndim]
    lined_up = [
        scale.swapaxes(*attrs["axes"]) if swap else scale
        for scale, swap in zip(scales, attrs.get("swap", (False,) * len(scales)), strict=True)
        if scale.ndim
    ]
    one = np.float32(1.0)

    def run() -> None:
        factor: FloatArray | np.float32 = one
        for scale in scalars:
            factor = factor * (one / scale)
        np.multiply(y, factor, out=out)
        for scale in lined_up:
            np.multiply(out, one / scale, out=out)

    return run


descale = Op(
    "descale",
    _first,
    _bind_descale,
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
