"""Layer normalisation over the last axis (arXiv 1607.06450).

The statistics of the rows are an op of their own, so that the gradients read those of the forward
pass, and they are float32 whatever format x has.
"""

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


class _Mean:
    """The mean over the first axis of what is in `scratch`, of the shape of x, for each row."""

    def __init__(self, x: FloatArray, work: FloatArray) -> None:
        self.scratch = work[: x.size].reshape(x.shape)
        lanes = (LANES, *x.shape[1:])
        self._lanes = work[x.size :][: size(lanes)].reshape(lanes)
        self._share = np.float32(1.0 / len(x))

    def __call__(self) -> FloatArray:
        total = sum_in_lanes(self.scratch, self._lanes)
        return np.multiply(total, self._share, out=total)


def _work(matrices: int) -> Callable[[Sequence[Shape], Shape, Attrs], int]:
    def work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
        return matrices * size(inputs[0]) + LANES * size(inputs[0][:-1])

    return work


def _apart(statistics: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the views of all means and of all inverse deviations."""
    both = last_axis_first(statistics)
    return both[0, ...], both[1, ...]


def _normaliser(
    x: FloatArray, statistics: FloatArray, normal: FloatArray
) -> Callable[[], FloatArray]:
    """Return the call that sets `normal` to (x - mean) / deviation, all [features, ...]."""
    mean, inverse = _apart(statistics)

    def run() -> FloatArray:
        np.subtract(x, mean, out=normal)
        return np.multiply(normal, inverse, out=normal)

    return run


def _beside(weight: FloatArray, x: FloatArray) -> FloatArray:
    """Return the weight [features] as it broadcasts over [features, ...]."""
    return weight.reshape(-1, *(1,) * (x.ndim - 1))


def _bind_statistics(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, (mean, inverse) = last_axis_first(inputs[0]), _apart(out)
    epsilon = np.float32(attrs.get("epsilon", EPSILON))
    average = _Mean(x, work)

    def run() -> None:
        np.copyto(average.scratch, x)
        np.copyto(mean, average())
        np.subtract(x, mean, out=average.scratch)
        np.multiply(average.scratch, average.scratch, out=average.scratch)
        np.add(average(), epsilon, out=inverse)
        np.sqrt(inverse, out=inverse)
        np.divide(np.float32(1.0), inverse, out=inverse)

    return run


def _bind_layer_norm(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, statistics, *owned = inputs
    normal = last_axis_first(out)
    normalise = _normaliser(last_axis_first(x), statistics, normal)
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
    grad, x, statistics, *owned = inputs
    weight = _beside(owned[0] if owned else np.ones(1, np.float32), x)
    grad, x, result = last_axis_first(grad), last_axis_first(x), last_axis_first(out)
    normal, mean = work[: x.size].reshape(x.shape), _Mean(x, work[x.size :])
    normalise, inverse = _normaliser(x, statistics, normal), _apart(statistics)[1]

    def run() -> None:
        normalise()
        np.multiply(grad, weight, out=result)
        if not attrs.get("fixed"):
            np.multiply(result, normal, out=mean.scratch)
            np.multiply(normal, mean(), out=normal)
            np.copyto(mean.scratch, result)
            np.subtract(result, mean(), out=result)
            np.subtract(result, normal, out=result)
        np.multiply(result, inverse, out=result)

    return run


def _bind_layer_norm_weight_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, x = last_axis_first(inputs[0]), last_axis_first(inputs[1])
    normal = work[: x.size].reshape(x.shape)
    normalise = _normaliser(x, inputs[2], normal)
    lanes = np.empty((len(x), LANES), np.float32).T

    def run() -> None:
        normalise()
        np.multiply(normal, grad, out=normal)
        np.copyto(out, sum_in_lanes(normal.reshape(len(normal), -1).T, lanes))

    return run


def _emit_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(layer_norm_grad, grad, *node.inputs[:3], attrs=node.attributes)


def _emit_weight_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(layer_norm_weight_grad, grad, *node.inputs[:2])


def _emit_bias_grad(b: Builder, node: Node, grad: int) -> int:
    if len(node.shape) != 2:
        grad = b.emit(shape_ops.reshape, grad, attrs={"shape": (-1, node.shape[-1])})
    return b.emit(bias_grad, grad)


def _statistics_example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((4, 6)).astype(np.float32),), {"epsilon": 1e-3})


def _example(rng: np.random.Generator) -> Example:
    x = rng.standard_normal((4, 6)).astype(np.float32)
    weight, bias = rng.standard_normal((2, 6)).astype(np.float32)
    statistics = rng.uniform(0.5, 2.0, (4, 2)).astype(np.float32)
    return Example((x, statistics, weight, bias), {"fixed": True})


layer_statistics = Op(
    "layer_statistics",
    shape=lambda inputs, attrs: (*inputs[0][:-1], 2),
    bind=_bind_statistics,
    gradients=(None,),
    flops=lambda inputs, out, attrs: 4 * size(inputs[0]),
    example=_statistics_example,
    kind="reduce",
    placement="fp32",
    work=_work(1),
    pinned=(0,),
)
"""Of each row of x its mean and 1 / sqrt(variance + `epsilon`), side by side on the last axis.

The gradient through them is that of `layer_norm`.
"""

layer_norm_grad = Op(
    "layer_norm_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_layer_norm_grad,
    flops=lambda inputs, out, attrs: 11 * size(out),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    work=_work(2),
    pinned=(2,),
)
layer_norm_weight_grad = Op(
    "layer_norm_weight_grad",
    shape=lambda inputs, attrs: (inputs[1][-1],),
    bind=_bind_layer_norm_weight_grad,
    flops=lambda inputs, out, attrs: 4 * size(inputs[1]),
    kind="reduce",
    placement="fp32",
    work=lambda inputs, out, attrs: size(inputs[1]),
    pinned=(2,),
)
layer_norm = Op(
    "layer_norm",
    shape=lambda inputs, attrs: inputs[0],
    bind=_bind_layer_norm,
    gradients=(_emit_grad, None, _emit_weight_grad, _emit_bias_grad),
    flops=lambda inputs, out, attrs: 4 * size(out),
    example=_example,
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    pinned=(1,),
)
"""weight * (x - mean) / deviation + bias, by the `layer_statistics` of x over its last axis.

Weight and bias may be left out together. The gradient of x takes account of the statistics being
those of x, unless they are `fixed`.
"""
