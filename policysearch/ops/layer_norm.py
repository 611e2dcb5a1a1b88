"""Layer normalisation of matrices [rows, features] over the features (arXiv 1607.06450)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Builder, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.dense import bias_grad

EPSILON = 1e-5
"""What torch adds to the variance unless told otherwise."""


class _Normalise:
    """(x - mean) / sqrt(variance + epsilon) per row into `out`; `deviation` [rows, 1] is kept.

    It needs the scratch of one matrix, whose values are free again afterwards, and two columns.
    """

    def __init__(self, x: FloatArray, out: FloatArray, attrs: Attrs, work: FloatArray) -> None:
        rows, features = x.shape
        self._x, self._out = x, out
        self._mean = work[:rows].reshape(rows, 1)
        self.deviation = work[rows : 2 * rows].reshape(rows, 1)
        self.scratch = np.ndarray(x.shape, np.float32, work[2 * rows :], strides=x.strides)
        self._share = np.float32(1.0 / features)
        self._epsilon = np.float32(attrs.get("epsilon", EPSILON))

    def __call__(self) -> None:
        out, mean, deviation = self._out, self._mean, self.deviation
        np.add.reduce(self._x, axis=1, keepdims=True, out=mean)
        np.multiply(mean, self._share, out=mean)
        np.subtract(self._x, mean, out=out)
        np.multiply(out, out, out=self.scratch)
        np.add.reduce(self.scratch, axis=1, keepdims=True, out=deviation)
        np.multiply(deviation, self._share, out=deviation)
        np.add(deviation, self._epsilon, out=deviation)
        np.sqrt(deviation, out=deviation)
        np.divide(out, deviation, out=out)


def _work(matrices: int) -> Callable[[Sequence[Shape], Shape, Attrs], int]:
    def work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
        rows, features = inputs[0]
        return matrices * rows * features + 2 * rows

    return work


def _bind_layer_norm(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, weight, bias = inputs
    normalise = _Normalise(x, out, attrs, work)

    def run() -> None:
        normalise()
        np.multiply(out, weight, out=out)
        np.add(out, bias, out=out)

    return run


def _bind_layer_norm_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """With g = grad * weight and y normalised: (g - mean(g) - y * mean(g * y)) / deviation."""
    grad, x, weight = inputs
    normal = np.ndarray(x.shape, np.float32, work, strides=x.strides)
    rest = work[x.size :]
    normalise = _Normalise(x, normal, attrs, rest)
    scratch, row = normalise.scratch, rest[: len(x)].reshape(-1, 1)
    share = np.float32(1.0 / x.shape[1])

    def run() -> None:
        normalise()
        np.multiply(grad, weight, out=out)
        np.multiply(out, normal, out=scratch)
        np.add.reduce(scratch, axis=1, keepdims=True, out=row)
        np.multiply(row, share, out=row)
        np.multiply(normal, row, out=normal)
        np.add.reduce(out, axis=1, keepdims=True, out=row)
        np.multiply(row, share, out=row)
        np.subtract(out, row, out=out)
        np.subtract(out, normal, out=out)
        np.divide(out, normalise.deviation, out=out)

    return run


def _bind_layer_norm_weight_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, x = inputs
    normal = np.ndarray(x.shape, np.float32, work, strides=x.strides)
    normalise = _Normalise(x, normal, attrs, work[x.size :])
    ones = np.ones(len(x), np.float32)

    def run() -> None:
        normalise()
        np.multiply(normal, grad, out=normal)
        np.matmul(ones, normal, out=out)

    return run


def _emit_grad(b: Builder, node: Node, grad: int) -> int:
    x, weight, _ = node.inputs
    return b.emit(layer_norm_grad, grad, x, weight, attrs=node.attributes)


def _emit_weight_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(layer_norm_weight_grad, grad, node.inputs[0], attrs=node.attributes)


def _example(rng: np.random.Generator) -> Example:
    x = rng.standard_normal((4, 6)).astype(np.float32)
    weight, bias = rng.standard_normal((2, 6)).astype(np.float32)
    return Example((x, weight, bias), {"epsilon": 1e-3})


layer_norm_grad = Op(
    "layer_norm_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_layer_norm_grad,
    flops=lambda inputs, out, attrs: 15 * size(out),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    work=_work(2),
)
layer_norm_weight_grad = Op(
    "layer_norm_weight_grad",
    shape=lambda inputs, attrs: (inputs[1][1],),
    bind=_bind_layer_norm_weight_grad,
    flops=lambda inputs, out, attrs: 8 * size(inputs[1]),
    kind="reduce",
    placement="fp32",
    work=_work(2),
)
layer_norm = Op(
    "layer_norm",
    shape=lambda inputs, attrs: inputs[0],
    bind=_bind_layer_norm,
    gradients=(_emit_grad, _emit_weight_grad, lambda b, node, grad: b.emit(bias_grad, grad)),
    flops=lambda inputs, out, attrs: 8 * size(out),
    example=_example,
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    work=_work(1),
)
"""weight * (x - mean) / sqrt(variance + `epsilon`) + bias, mean and variance over each row."""
