"""Where the scale of a tensor is multiplied in, before a cast, and divided out after a product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


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
