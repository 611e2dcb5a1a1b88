"""What attention needs beside products and transposes: a constant factor and softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Builder, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import last_axis_first
from policysearch.ops.folding import fold


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
    return 2 * size(out)


def _bind_softmax(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, result = last_axis_first(inputs[0]), last_axis_first(out)
    y, half = work[: x.size].reshape(x.shape), work[x.size : 2 * x.size].reshape(x.shape)

    def run() -> None:
        np.copyto(y, x)
        np.subtract(y, np.maximum.reduce(y, axis=0, out=half[0, ...]), out=y)
        np.exp(y, out=y)
        np.divide(y, fold(y, half), out=result)

    return run


def _bind_softmax_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """y * (grad - sum(grad * y)), the sum over the last axis."""
    grad, y, result = (last_axis_first(array) for array in (*inputs, out))
    product = work[: y.size].reshape(y.shape)

    def run() -> None:
        np.multiply(grad, y, out=product)
        np.subtract(grad, fold(product, product), out=result)
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
"""exp(x) / sum(exp(x)) over the last axis, shifted by the maximum so that nothing overflows."""
