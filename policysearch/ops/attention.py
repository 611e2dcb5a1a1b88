"""What attention needs beside products and transposes: a constant factor and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import last_axis_first
from policysearch.ops.builder import Builder
from policysearch.ops.lanes import LANES, sum_in_lanes


def _bind_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, factor = inputs[0], np.float32(attrs["factor"])
    return lambda: np.multiply(x, factor, out=out)


def _scale_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(scale, grad, attrs=node.attributes)


scale = Op(
    "scale",
    shape=lambda inputs, attrs: inputs[0],
    bind=_bind_scale,
    gradients=(_scale_gradient,),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 5)).astype(np.float32),), {"factor": 0.3}
    ),
    in_place=(0,),
)
"""x times the constant `factor`, which is rounded to float32."""


def _work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(out) + LANES * size(out[:-1])


def _scratch(x: FloatArray, work: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return room for x [length, ...] and for the lanes of its sum over the first axis."""
    rows = x.shape[1:]
    return work[: x.size].reshape(x.shape), work[x.size :][: LANES * size(rows)].reshape(-1, *rows)


def _bind_softmax(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, result = last_axis_first(inputs[0]), last_axis_first(out)
    y, lanes = _scratch(x, work)

    def run() -> None:
        np.copyto(y, x)
        np.subtract(y, np.maximum.reduce(y, axis=0, out=lanes[0, ...]), out=y)
        np.exp(y, out=y)
        np.divide(y, sum_in_lanes(y, lanes), out=result)

    return with_empty_rows(run, inputs[0], out) if attrs.get("empty_rows") else run


def with_empty_rows(
    run: Callable[[], object], x: FloatArray, out: FloatArray
) -> Callable[[], object]:
    """Return what sets `out` as `run` does, but rows to 0 of which x is -inf throughout."""

    def filled() -> None:
        empty = np.isneginf(x.max(axis=-1))  # before `run`, as out may be x
        run()
        out[empty] = 0.0

    return filled


def _bind_softmax_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """y * (grad - sum(grad * y)), the sum over the last axis."""
    grad, y, result = (last_axis_first(array) for array in (*inputs, out))
    product, lanes = _scratch(y, work)

    def run() -> None:
        np.multiply(grad, y, out=product)
        np.subtract(grad, sum_in_lanes(product, lanes), out=result)
        np.multiply(result, y, out=result)

    return run


softmax_grad = Op(
    "softmax_grad",
    shape=lambda inputs, attrs: inputs[0],
    bind=_bind_softmax_grad,
    flops=lambda inputs, out, attrs: 4 * size(out),
    kind="reduce",
    placement="fp32",
    work=_work,
)
softmax = Op(
    "softmax",
    shape=lambda inputs, attrs: inputs[0],
    bind=_bind_softmax,
    gradients=(lambda b, node, grad: b.emit(softmax_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 12 * size(out),
    example=lambda rng: Example((rng.standard_normal((2, 3, 5)).astype(np.float32),)),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    work=_work,
)
"""exp(x) / sum(exp(x)) over the last axis, shifted by the maximum so that nothing overflows.

A row that is -inf throughout gives NaN, as in torch; with `empty_rows` 0, as in its
scaled_dot_product_attention (`_safe_softmax` in `aten/src/ATen/native/transformers/attention.cpp`).
"""
