"""Smooth activations with their gradient ops; relu is beside the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, size
from policysearch.ops.elementwise import one_example, same_shape, ufunc

_GELU_SCALE = np.float32(np.sqrt(2.0 / np.pi))
_GELU_CUBIC = np.float32(0.044715)


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


def _gelu_inner(x: FloatArray, out: FloatArray) -> None:
    """tanh(sqrt(2/pi) (x + 0.044715 x^3)), Hendrycks and Gimpel, arXiv 1606.08415."""
    np.multiply(x, x, out=out)
    np.multiply(out, _GELU_CUBIC, out=out)
    np.add(out, np.float32(1.0), out=out)
    np.multiply(out, x, out=out)
    np.multiply(out, _GELU_SCALE, out=out)
    np.tanh(out, out=out)


def _bind_gelu(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, half = inputs[0], np.float32(0.5)

    def run() -> None:
        _gelu_inner(x, out)
        np.add(out, np.float32(1.0), out=out)
        np.multiply(out, x, out=out)
        np.multiply(out, half, out=out)

    return run


def _bind_gelu_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """With t the inner tanh: (1 + t) / 2 + x (1 - t^2) sqrt(2/pi) (1 + 3 * 0.044715 x^2) / 2."""
    grad, x = inputs
    t, u = np.split(work[: 2 * x.size], 2)
    t, u = (np.ndarray(x.shape, np.float32, a, strides=x.strides) for a in (t, u))
    one, half = np.float32(1.0), np.float32(0.5)

    def run() -> None:
        _gelu_inner(x, t)
        np.multiply(x, x, out=u)
        np.multiply(u, 3 * _GELU_CUBIC, out=u)
        np.add(u, one, out=u)
        np.multiply(u, x, out=u)
        np.multiply(u, half * _GELU_SCALE, out=u)
        np.subtract(u, np.multiply(np.multiply(u, t, out=out), t, out=out), out=u)
        np.add(t, one, out=t)
        np.multiply(t, half, out=t)
        np.add(t, u, out=t)
        np.multiply(grad, t, out=out)

    return run


gelu_grad = Op(
    "gelu_grad",
    same_shape,
    _bind_gelu_grad,
    flops=lambda inputs, out, attrs: 20 * size(out),
    work=lambda inputs, out, attrs: 2 * size(out),
)
gelu = Op(
    "gelu",
    same_shape,
    _bind_gelu,
    gradients=(lambda b, node, grad: b.emit(gelu_grad, grad, node.inputs[0]),),
    flops=lambda inputs, out, attrs: 15 * size(out),
    example=one_example,
)
