"""What attention needs beside products and transposes: a constant factor and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Builder, Example, FloatArray, Node, Op, Shape, size


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


SHORT = 16
"""Rows up to this length are reduced faster side by side: numpy has no SIMD for short ones."""


def _work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(out[:-1]) + size(out)


def _scratch(
    x: FloatArray, out: FloatArray, work: FloatArray
) -> tuple[FloatArray, FloatArray, bool]:
    """Return a column [..., 1], an array like x to compute in, and whether that is not `out`.

    Where rows are short and contiguous, the second has its last axis outermost in memory.
    """
    lead, length = x.shape[:-1], x.shape[-1]
    count = size(lead)
    column, rest = work[:count].reshape(*lead, 1), work[count : count + x.size]
    if length > SHORT or x.strides[-1] != x.itemsize:
        return column, out, False
    return column, rest.reshape(length, count).T.reshape(x.shape), True


def _bind_softmax(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x = inputs[0]
    column, y, apart = _scratch(x, out, work)

    def run() -> None:
        if apart:
            np.copyto(y, x)
        values = y if apart else x
        np.maximum.reduce(values, axis=-1, keepdims=True, out=column)
        np.subtract(values, column, out=y)
        np.exp(y, out=y)
        np.add.reduce(y, axis=-1, keepdims=True, out=column)
        np.divide(y, column, out=out)

    return run


def _bind_softmax_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """y * (grad - sum(grad * y)), the sum over the last axis."""
    grad, y = inputs
    column, product, _ = _scratch(y, out, work)

    def run() -> None:
        np.multiply(grad, y, out=product)
        np.add.reduce(product, axis=-1, keepdims=True, out=column)
        np.subtract(grad, column, out=out)
        np.multiply(out, y, out=out)

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
"""exp(x) / sum(exp(x)) over the last axis, shifted by the maximum so that nothing overflows."""
