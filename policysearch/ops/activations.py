"""Smooth activations with their gradient ops; relu is beside the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, size
from policysearch.ops.elementwise import one_example, same_shape, ufunc


def _bind_tanh_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, y = inputs
    slope = np.ndarray(y.shape, np.float32, work, strides=y.strides)

    def run() -> None:
        np.multiply(y, y, out=slope)
        np.subtract(np.float32(1.0), slope, out=slope)
        np.multiply(grad, slope, out=out)

    return run


tanh_grad = Op(
    "tanh_grad",
    same_shape,
    _bind_tanh_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
tanh = Op(
    "tanh",
    same_shape,
    ufunc(np.tanh),
    gradients=(lambda b, node, grad: b.emit(tanh_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 10 * size(out),
    example=one_example,
    in_place=(0,),
)


def _bind_sigmoid(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """Half of 1 + tanh(x / 2): no exponential that overflows."""
    x, half = inputs[0], np.float32(0.5)

    def run() -> None:
        np.multiply(x, half, out=out)
        np.tanh(out, out=out)
        np.multiply(out, half, out=out)
        np.add(out, half, out=out)

    return run


def _bind_sigmoid_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, y = inputs
    slope = np.ndarray(y.shape, np.float32, work, strides=y.strides)

    def run() -> None:
        np.subtract(np.float32(1.0), y, out=slope)
        np.multiply(slope, y, out=slope)
        np.multiply(grad, slope, out=out)

    return run


sigmoid_grad = Op(
    "sigmoid_grad",
    same_shape,
    _bind_sigmoid_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
sigmoid = Op(
    "sigmoid",
    same_shape,
    _bind_sigmoid,
    gradients=(lambda b, node, grad: b.emit(sigmoid_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 10 * size(out),
    example=one_example,
    in_place=(0,),
)
