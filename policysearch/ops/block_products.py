"""Products of block-scaled operands: every value times the scale of its block, exact in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op
from policysearch.layout import empty
from policysearch.ops.block_scale import spread_scales
from policysearch.ops.conv import conv2d, conv2d_dgrad, conv2d_wgrad
from policysearch.ops.dense import matmul, transposed

TAKES_SCALES = "takes_scales"
"""The attribute of a product whose accumulator applies the scales of blocks itself."""


def _spread(inputs: Sequence[FloatArray], attrs: Attrs) -> tuple[FloatArray, FloatArray]:
    """Return the scale of every element of both operands, as a product reads them."""
    found = list(inputs[:2])
    for (position, *cuts), scales in zip(attrs["blocks"], inputs[2:], strict=True):
        found[position] = spread_scales(scales, found[position].shape, *cuts)
    return transposed(found[0], found[1], attrs)


def _restored_values(values: FloatArray, scales: FloatArray, cuts: Sequence[int]) -> FloatArray:
    """Return values * block scales, in storage order as every operand is."""
    spread = spread_scales(scales, values.shape, *cuts)
    return np.multiply(values, spread, out=empty(values.shape, values))


def _over_blocks(op: Op) -> Op:
    """Return the product `op` of block-scaled operands.

    Inputs are the two operands and the scales of those that have any; `blocks` holds, for each
    scale, (operand 0 or 1, axis, block), and the second axis and block where blocks are square.
    Scaled values are exact in float32 where the scales are powers of two or short.
    """

    def forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray | np.float32:
        operands = list(inputs[:2])
        if attrs.get(TAKES_SCALES):
            product = partial(attrs["product"], scales=_spread(inputs, attrs))
            return op.forward(operands, {**attrs, "product": product})
        for (position, *cuts), scales in zip(attrs["blocks"], inputs[2:], strict=True):
            operands[position] = _restored_values(operands[position], scales, cuts)
        return op.forward(operands, attrs)

    return Op(
        f"{op.name}_blocks",
        shape=lambda inputs, attrs: op.shape(inputs[:2], attrs),
        forward=forward,
        flops=lambda inputs, out, attrs: op.flops(inputs[:2], out, attrs),
        example=_over_blocks_example(op),
        kind="gemm",
        placement="low",
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
