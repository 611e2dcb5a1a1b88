"""The gradients of layer norm, from the statistics of the forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, size
from policysearch.layout import last_axis_first
from policysearch.ops.lanes import LANES, sum_in_lanes
from policysearch.ops.layer_norm_rows import (
    RowMean,
    means_and_inverses,
    normaliser,
    over_rows,
    work_of_means,
)


def _bind_layer_norm_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """With g = grad * weight and y normalised: (g - mean(g) - y * mean(g * y)) / deviation."""
    grad, x, statistics, *owned = inputs
    weight = over_rows(owned[0] if owned else np.ones(1, np.float32), x)
    grad, x, result = last_axis_first(grad), last_axis_first(x), last_axis_first(out)
    normal, mean = work[: x.size].reshape(x.shape), RowMean(x, work[x.size :])
    normalise, inverse = normaliser(x, statistics, normal), means_and_inverses(statistics)[1]

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
    normalise = normaliser(x, inputs[2], normal)
    lanes = np.empty((len(x), LANES), np.float32).T

    def run() -> None:
        normalise()
        np.multiply(normal, grad, out=normal)
        np.copyto(out, sum_in_lanes(normal.reshape(len(normal), -1).T, lanes))

    return run


layer_norm_grad = Op(
    "layer_norm_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_layer_norm_grad,
    flops=lambda inputs, out, attrs: 11 * size(out),
    kind="reduce",
    placement="fp32",
    in_place=(0,),
    work=work_of_means(2),
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
