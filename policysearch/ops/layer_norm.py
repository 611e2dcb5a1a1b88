"""Layer normalisation over the last axis (arXiv 1607.06450)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Builder, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import last_axis_first
from policysearch.ops import shape as shape_ops
from policysearch.ops.dense import bias_grad
from policysearch.ops.lanes import LANES, sum_in_lanes

EPSILON = 1e-5
"""What torch adds to the variance unless told otherwise."""


class _Normalise:
    """(x - mean) / sqrt(variance + epsilon) into `normal`, each [features, ...] with rows after.

    `inverse` holds 1 / sqrt(variance + epsilon); `scratch`, as large as x, is free afterwards.
    """

    def __init__(self, x: FloatArray, normal: FloatArray, attrs: Attrs, work: FloatArray) -> None:
        self._x, self._normal = last_axis_first(x), normal
        self._share = np.float32(1.0 / x.shape[-1])
        self._epsilon = np.float32(attrs.get("epsilon", EPSILON))
        shape, rows = self._x.shape, self._x.shape[1:]
        self.scratch, beside = work[: x.size].reshape(shape), work[x.size :]
        columns = beside[: (LANES + 1) * size(rows)].reshape(LANES + 1, *rows)
        self._lanes, self.inverse = columns[:LANES], columns[LANES, ...]

    def __call__(self) -> None:
        np.copyto(self.scratch, self._x)
        np.subtract(self._x, self.mean(), out=self._normal)
        np.multiply(self._normal, self._normal, out=self.scratch)
        np.add(self.mean(), self._epsilon, out=self.inverse)
        np.sqrt(self.inverse, out=self.inverse)
        np.divide(np.float32(1.0), self.inverse, out=self.inverse)
        np.multiply(self._normal, self.inverse, out=self._normal)

    def mean(self) -> FloatArray:
        """Return the mean of what is in the scratch over the features."""
        total = sum_in_lanes(self.scratch, self._lanes)
        return np.multiply(total, self._share, out=total)


def _work(matrices: int) -> Callable[[Sequence[Shape], Shape, Attrs], int]:
    def work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
        return matrices * size(inputs[0]) + (LANES + 1) * size(inputs[0][:-1])

    return work


def _beside(weight: FloatArray, x: FloatArray) -> FloatArray:
    """Return the weight [features] as it broadcasts over [features, ...]."""
    return weight.reshape(-1, *(1,) * (x.ndim - 1))


def _bind_layer_norm(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, *owned = inputs
    normal = last_axis_first(out)
    normalise = _Normalise(x, normal, attrs, work)
    if not owned:
        return normalise
    weight, bias = (_beside(each, x) for each in owned)

    def run() -> None:
        normalise()
        np.multiply(normal, weight, out=normal)
        np.add(normal, bias, out=normal)

    return run


def _bind_layer_norm_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """With g = grad * weight and y normalised: (g - mean(g) - y * mean(g * y)) / deviation."""
    grad, x, *owned = inputs
    grad, result = last_axis_first(grad), last_axis_first(out)
    normal = work[: x.size].reshape(grad.shape)
    normalise = _Normalise(x, normal, attrs, work[x.size :])
    scratch, mean = normalise.scratch, normalise.mean
    weight = _beside(owned[0] if owned else np.ones(1, np.float32), x)

    def run() -> None:
        normalise()
        np.multiply(grad, weight, out=result)
        np.multiply(result, normal, out=scratch)
        np.multiply(normal, mean(), out=normal)
        np.copyto(scratch, result)
        np.subtract(result, mean(), out=result)
        np.subtract(result, normal, out=result)
        np.multiply(result, normalise.inverse, out=result)

    return run


def _bind_layer_norm_weight_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, x = last_axis_first(inputs[0]), inputs[1]
    normal = work[: x.size].reshape(grad.shape)
    normalise = _Normalise(x, normal, attrs, work[x.size :])
    lanes = np.empty((len(normal), LANES), np.float32).T

    def run() -> None:
        normalise()
        np.multiply(normal, grad, out=normal)
        np.copyto(out, sum_in_lanes(normal.reshape(len(normal), -1).T, lanes))

    return run


def _emit_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(layer_norm_grad, grad, *node.inputs[:2], attrs=node.attributes)


def _emit_weight_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(layer_norm_weight_grad, grad, node.inputs[0], attrs=node.attributes)


def _emit_bias_grad(b: Builder, node: Node, grad: int) -> int:
    if len(node.shape) != 2:
        grad = b.emit(shape_ops.reshape, grad, attrs={"shape": (-1, node.shape[-1])})
    return b.emit(bias_grad, grad)


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
    shape=lambda inputs, attrs: (inputs[1][-1],),
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
    gradients=(_emit_grad, _emit_weight_grad, _emit_bias_grad),
    flops=lambda inputs, out, attrs: 8 * size(out),
    example=_example,
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    work=_work(1),
)
"""weight * (x - mean) / sqrt(variance + `epsilon`) + bias, mean and variance over the last axis.

Weight and bias may be left out together.
"""
