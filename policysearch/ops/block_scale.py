"""Block scaling (MX and NVFP4): one scale per run of elements along the contraction.

Scales here multiply after the cast (x ~ q * scale), as both definitions have it. Sources: OCP
Microscaling Formats (MX) v1.0, section 6.3; Transformer Engine's `common/util/ptx.cuh`
(`float_to_e8m0`) and its NVFP4 reference quantiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from policysearch.graph import Attrs, Bind, Example, FloatArray, Op, Shape, size
from policysearch.ops.conv import conv2d, conv2d_dgrad, conv2d_wgrad
from policysearch.ops.dense import matmul
from policysearch.ops.scale import LARGEST, in_blocks


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


def _scaling(
    x: FloatArray, scales: FloatArray, out: FloatArray, attrs: Attrs
) -> Callable[[], None]:
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
    scale = _scaling(x, factors, out, attrs)

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


def _restored(
    values: FloatArray, scales: FloatArray, attrs: Attrs, work: FloatArray
) -> tuple[FloatArray, Callable[[], None]]:
    """Return the array of values * block scales, and the function that fills it."""
    out = np.ndarray(values.shape, np.float32, work, strides=values.strides)
    return out, _scaling(values, scales, out, attrs)


def _bind_over_blocks(op: Op) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        operands, fills = list(inputs[:2]), []
        for (position, axis, block), scales in zip(attrs["blocks"], inputs[2:], strict=True):
            values, along = operands[position], {"axis": axis, "block": block}
            operands[position], fill = _restored(values, scales, along, work[: values.size])
            work = work[values.size :]
            fills.append(fill)
        product = op.bind(operands, out, attrs, work)

        def run() -> None:
            for fill in fills:
                fill()
            product()

        return run

    return bind


def _over_blocks(op: Op) -> Op:
    """Return the product `op` of block-scaled operands.

    Inputs are the two operands and the scales of those that have any; `blocks` holds, for each
    scale, (operand 0 or 1, axis, block). Scaled values are exact in float32 and live in scratch.
    """
    return Op(
        f"{op.name}_blocks",
        shape=lambda inputs, attrs: op.shape(inputs[:2], attrs),
        bind=_bind_over_blocks(op),
        flops=lambda inputs, out, attrs: op.flops(inputs[:2], out, attrs),
        example=_over_blocks_example(op),
        kind="gemm",
        placement="low",
        work=lambda inputs, out, attrs: (
            sum(size(inputs[position]) for position, _, _ in attrs["blocks"])
            + op.work(inputs[:2], out, attrs)
        ),
    )


def _over_blocks_example(op: Op) -> Callable[[np.random.Generator], Example] | None:
    plain = op.example
    if plain is None:
        return None

    def example(rng: np.random.Generator) -> Example:
        given = plain(rng)
        axis = given.inputs[0].ndim - 1 if op is matmul else 1
        shape = list(given.inputs[0].shape)
        shape[axis] = -(-shape[axis] // 2)
        scales = (2.0 ** rng.integers(-3, 4, shape)).astype(np.float32)
        return replace(
            given,
            inputs=(*given.inputs, scales),
            attrs={**given.attrs, "blocks": ((0, axis, 2),)},
        )

    return example


matmul_blocks = _over_blocks(matmul)
conv2d_blocks = _over_blocks(conv2d)
conv2d_dgrad_blocks = _over_blocks(conv2d_dgrad)
conv2d_wgrad_blocks = _over_blocks(conv2d_wgrad)
OVER_BLOCKS = (matmul_blocks, conv2d_blocks, conv2d_dgrad_blocks, conv2d_wgrad_blocks)
