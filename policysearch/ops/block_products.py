"""Products of block-scaled operands: every value times the scale of its block, exact in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from policysearch.graph import Attrs, Bind, Example, FloatArray, Op, size
from policysearch.ops.block_cast import scaling
from policysearch.ops.conv import conv2d
from policysearch.ops.conv_grad import conv2d_dgrad, conv2d_wgrad
from policysearch.ops.dense import matmul


def _restored(
    values: FloatArray, scales: FloatArray, attrs: Attrs, work: FloatArray
) -> tuple[FloatArray, Callable[[], None]]:
    """Return the array of values * block scales, and the function that fills it."""
    out = np.ndarray(values.shape, np.float32, work, strides=values.strides)
    return out, scaling(values, scales, out, attrs)


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
