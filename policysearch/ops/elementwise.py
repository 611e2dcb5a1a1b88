"""Elementwise ops: sums, products and activations, with their gradient ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Bind, Builder, Example, FloatArray, Node, Op, Shape, size

_GELU_SCALE = np.float32(np.sqrt(2.0 / np.pi))
_GELU_CUBIC = np.float32(0.044715)


def _same(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _pair(rng: np.random.Generator) -> Example:
    first, second = rng.standard_normal((2, 3, 5)).astype(np.float32)
    return Example((first, second))


def _one(rng: np.random.Generator) -> Example:
    """Values at least 0.1 away from zero, where relu has its kink."""
    x = rng.standard_normal((3, 5)).astype(np.float32)
    return Example((x + np.copysign(np.float32(0.1), x),))


def _ufunc(function: Callable[..., object]) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        arguments = tuple(inputs)
        return lambda: function(*arguments, out=out)

    return bind


def _pass(b: Builder, node: Node, grad: int) -> int:
    return grad


add = Op(
    "add",
    _same,
    _ufunc(np.add),
    gradients=(_pass, _pass),
    example=_pair,
    in_place=(0, 1),
)

multiply: Op = Op(
    "multiply",
    _same,
    _ufunc(np.multiply),
    gradients=(
        lambda b, node, grad: b.emit(multiply, grad, node.inputs[1]),
        lambda b, node, grad: b.emit(multiply, grad, node.inputs[0]),
    ),
    example=_pair,
    in_place=(0, 1),
)


def _bind_relu(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """A maximum with an array of zeros takes a third of the time of one with a scalar."""
    x, zeros = inputs[0], np.ndarray(out.shape, np.float32, work, strides=out.strides)

    def run() -> None:
        zeros.fill(0.0)
        np.maximum(x, zeros, out=out)

    return run


def _bind_relu_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """g where y > 0 without a boolean array: y is +0 or positive, so -bits has the sign set."""
    grad, y = (array.view(np.int32) for array in inputs)
    masked = out.view(np.int32)
    mask = np.ndarray(y.shape, np.int32, work, strides=y.strides)

    def run() -> None:
        np.negative(y, out=mask)
        np.right_shift(mask, 31, out=mask)
        np.bitwise_and(grad, mask, out=masked)

    return run


relu_grad = Op(
    "relu_grad",
    _same,
    _bind_relu_grad,
    keeps_format=True,
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
relu = Op(
    "relu",
    _same,
    _bind_relu,
    gradients=(lambda b, node, grad: b.emit(relu_grad, grad, node.id),),
    example=_one,
    keeps_format=True,
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)


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
    _same,
    _bind_tanh_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
tanh = Op(
    "tanh",
    _same,
    _ufunc(np.tanh),
    gradients=(lambda b, node, grad: b.emit(tanh_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 10 * size(out),
    example=_one,
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
    _same,
    _bind_sigmoid_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
sigmoid = Op(
    "sigmoid",
    _same,
    _bind_sigmoid,
    gradients=(lambda b, node, grad: b.emit(sigmoid_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: 10 * size(out),
    example=_one,
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
    _same,
    _bind_gelu_grad,
    flops=lambda inputs, out, attrs: 20 * size(out),
    work=lambda inputs, out, attrs: 2 * size(out),
)
gelu = Op(
    "gelu",
    _same,
    _bind_gelu,
    gradients=(lambda b, node, grad: b.emit(gelu_grad, grad, node.inputs[0]),),
    flops=lambda inputs, out, attrs: 15 * size(out),
    example=_one,
)
