"""Layer normalisation over the last axis (arXiv 1607.06450).

The statistics of the rows are an op of their own, so that the gradients read those of the forward
pass, and they are float32 whatever format x has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size
from policysearch.layout import last_axis_first
from policysearch.ops import shape as shape_ops
from policysearch.ops.builder import Builder
from policysearch.ops.dense import bias_grad
from policysearch.ops.layer_norm_grad import layer_norm_grad, layer_norm_weight_grad
from policysearch.ops.layer_norm_rows import (
    RowMean,
    means_and_inverses,
    normaliser,
    over_rows,
    work_of_means,
)

EPSILON = 1e-5
"""What torch adds to the variance unless told otherwise."""


def _bind_statistics(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, (mean, inverse) = last_axis_first(inputs[0]), means_and_inverses(out)
    epsilon = np.float32(attrs.get("epsilon", EPSILON))
    average = RowMean(x, work)

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
    normalise = normaliser(last_axis_first(x), statistics, normal)
    if not owned:
        return normalise
    weight, bias = (over_rows(each, x) for each in owned)

    def run() -> None:
        normalise()
        np.multiply(normal, weight, out=normal)
        np.add(normal, bias, out=normal)

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
    work=work_of_means(1),
    pinned=(0,),
)
"""Of each row of x its mean and 1 / sqrt(variance + `epsilon`), side by side on the last axis.

The gradient through them is that of `layer_norm`.
"""

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
