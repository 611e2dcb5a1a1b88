"""Softmax and norms in numpy without new arrays: those of a tensor's size cost as much as the sums.

Operation by operation what `ops/softmax.py`, `ops/layer_norm.py` and `ops/batch_norm.py` mean, on
scratch that other nodes use before and after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Bind, Kernel, Offer, Run, Work, like
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import last_axis_view
from policysearch.ops.batch_norm import along, inverse_deviation
from policysearch.ops.layer_norm import EPSILON, over_rows
from policysearch.ops.summation import LANES, channel_sum, lane_sum


class _Rows:
    """Room for an array like x [length, ...], in C order, and for the lanes of its sum."""

    def __init__(self, x: FloatArray, work: FloatArray) -> None:
        rows = x.shape[1:]
        self.array = work[: x.size].reshape(x.shape)
        self._lanes = work[x.size :][: LANES * size(rows)].reshape(LANES, *rows)
        whole = len(x) // LANES * LANES
        self._blocks = self.array[:whole].reshape(-1, *self._lanes.shape)
        self._rest, self._lead = self.array[whole:], self._lanes[: len(x) - whole]
        self._share = np.float32(1.0 / len(x))

    def sum(self) -> FloatArray:
        """Return the sum over the first axis (`lane_sum`): a view that is spent by the next."""
        lanes, half = self._lanes, LANES // 2
        np.add.reduce(self._blocks, axis=0, out=lanes, initial=np.float32(0.0))
        np.add(self._lead, self._rest, out=self._lead)
        while half:
            np.add(lanes[:half], lanes[half : 2 * half], out=lanes[:half])
            half //= 2
        return lanes[0, ...]

    def mean(self) -> FloatArray:
        total = self.sum()
        return np.multiply(total, self._share, out=total)


def _work_of_rows(matrices: int) -> Work:
    """Return the scratch of so many arrays like the first input, and the lanes of `_Rows`."""

    def work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
        return matrices * size(inputs[0]) + LANES * size(inputs[0][:-1])

    return work


def _bind_softmax(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    x, result = last_axis_view(inputs[0]), last_axis_view(out)
    rows = _Rows(x, work)
    y, empty_rows = rows.array, attrs.get("empty_rows")

    def run() -> None:
        np.copyto(y, x)
        highest = np.maximum.reduce(y, axis=0)
        np.subtract(y, highest, out=y)
        np.exp(y, out=y)
        np.divide(y, rows.sum(), out=result)
        if empty_rows:
            result[:, np.isneginf(highest)] = 0.0

    return run


def _bind_softmax_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, y, result = (last_axis_view(array) for array in (*inputs, out))
    rows = _Rows(y, work)

    def run() -> None:
        np.multiply(grad, y, out=rows.array)
        np.subtract(grad, rows.sum(), out=result)
        np.multiply(result, y, out=result)

    return run


def _bind_statistics(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    x, both = last_axis_view(inputs[0]), last_axis_view(out)
    mean, inverse = both[0, ...], both[1, ...]
    epsilon, rows = np.float32(attrs.get("epsilon", EPSILON)), _Rows(x, work)

    def run() -> None:
        np.copyto(rows.array, x)
        np.copyto(mean, rows.mean())
        np.subtract(x, mean, out=rows.array)
        np.multiply(rows.array, rows.array, out=rows.array)
        np.add(rows.mean(), epsilon, out=inverse)
        np.sqrt(inverse, out=inverse)
        np.divide(np.float32(1.0), inverse, out=inverse)

    return run


def _normaliser(x: FloatArray, statistics: FloatArray, normal: FloatArray) -> Run:
    """Return the call that sets `normal` to (x - mean) / deviation, both [features, ...]."""
    mean, inverse = last_axis_view(statistics)

    def run() -> None:
        np.subtract(x, mean, out=normal)
        np.multiply(normal, inverse, out=normal)

    return run


def _bind_layer_norm(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    x, statistics, *owned = inputs
    normal = last_axis_view(out)
    normalise = _normaliser(last_axis_view(x), statistics, normal)
    if not owned:
        return normalise
    weight, bias = (over_rows(vector, normal) for vector in owned)

    def run() -> None:
        normalise()
        np.multiply(normal, weight, out=normal)
        np.add(normal, bias, out=normal)

    return run


def _bind_layer_norm_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, x, result = (last_axis_view(array) for array in (*inputs[:2], out))
    statistics, *owned = inputs[2:]
    weight = over_rows(owned[0], x) if owned else np.float32(1.0)
    normal, rows = work[: x.size].reshape(x.shape), _Rows(x, work[x.size :])
    normalise, inverse = _normaliser(x, statistics, normal), last_axis_view(statistics)[1]

    def run() -> None:
        normalise()
        np.multiply(grad, weight, out=result)
        if not attrs.get("fixed"):
            np.multiply(result, normal, out=rows.array)
            np.multiply(normal, rows.mean(), out=normal)
            np.copyto(rows.array, result)
            np.subtract(result, rows.mean(), out=result)
            np.subtract(result, normal, out=result)
        np.multiply(result, inverse, out=result)

    return run


def _bind_layer_norm_weight_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, x = (last_axis_view(array) for array in inputs[:2])
    product = work[: x.size].reshape(x.shape)
    normalise = _normaliser(x, inputs[2], product)
    turned = product.reshape(len(product), -1).T

    def run() -> None:
        normalise()
        np.multiply(product, grad, out=product)
        np.copyto(out, lane_sum(turned))

    return run


@cache
def _ones(count: int) -> FloatArray:
    """Return so many ones, one array for all who sum by a product with them."""
    ones = np.ones(count, np.float32)
    ones.flags.writeable = False
    return ones


def _channel_sums(values: FloatArray, out: FloatArray) -> Run:
    """Return the call that sets `out` to the sum of [batch, channels, ...] (`channel_sum`)."""
    if values.ndim == 2:
        return partial(np.matmul, _ones(len(values)), values, out=out)
    if values.ndim != 4:
        return lambda: np.copyto(out, channel_sum(values))
    batch, channels, height, width = values.shape
    rows = values.transpose(2, 1, 3, 0).reshape(height, channels, width * batch)
    ones, by_row = _ones(width * batch), np.empty((height, channels), np.float32)

    def run() -> None:
        np.matmul(rows, ones, out=by_row)
        np.add.reduce(by_row, axis=0, out=out)

    return run


def _channel_means(values: FloatArray, out: FloatArray) -> Run:
    total, share = _channel_sums(values, out), np.float32(values.shape[1] / values.size)

    def run() -> None:
        total()
        np.multiply(out, share, out=out)

    return run


def _bind_channel_sum(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    return _channel_sums(inputs[0], out)


def _bind_mean(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    return _channel_means(inputs[0], out)


def _bind_variance(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    x, centred = inputs[0], like(inputs[0], work)
    mean, mean_square, middle = _channel_means(x, out), _channel_means(centred, out), along(out, x)

    def run() -> None:
        mean()
        np.subtract(x, middle, out=centred)
        np.multiply(centred, centred, out=centred)
        mean_square()

    return run


def _bind_batch_norm_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, x, mean, variance, weight = inputs
    normal, product, means = like(x, work), like(x, work, 1), np.empty(x.shape[1], np.float32)
    of_product, of_grad = _channel_means(product, means), _channel_means(grad, means)
    middle, spread = along(mean, x), along(means, x)

    def run() -> None:
        inverse = inverse_deviation(variance, attrs)
        if not attrs.get("training"):
            np.multiply(grad, along(inverse * weight, x), out=out)
            return
        np.subtract(x, middle, out=normal)
        np.multiply(normal, along(inverse, x), out=normal)
        np.multiply(grad, normal, out=product)
        of_product()
        np.multiply(normal, spread, out=normal)
        of_grad()
        np.subtract(grad, spread, out=out)
        np.subtract(out, normal, out=out)
        np.multiply(out, along(inverse * weight, x), out=out)

    return run


def _bind_batch_norm_weight_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    grad, x, mean, variance = inputs
    product, middle = like(x, work), along(mean, x)
    total = _channel_sums(product, out)

    def run() -> None:
        np.subtract(x, middle, out=product)
        np.multiply(product, grad, out=product)
        total()
        np.multiply(out, inverse_deviation(variance, attrs), out=out)

    return run


def _offer(bind: Bind, work: Work) -> Offer:
    return lambda inputs, out, attrs: Kernel(bind, work)


def _offer_last_axis(bind: Bind) -> Offer:
    work = _work_of_rows(1)
    return lambda inputs, out, attrs: None if "axis" in attrs else Kernel(bind, work)


def _arrays(count: int) -> Work:
    return lambda inputs, out, attrs: count * size(inputs[0])


NUMPY_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "softmax": _offer_last_axis(_bind_softmax),
        "softmax_grad": _offer_last_axis(_bind_softmax_grad),
        "layer_statistics": _offer(_bind_statistics, _work_of_rows(1)),
        "layer_norm": _offer(_bind_layer_norm, _arrays(0)),
        "layer_norm_grad": _offer(_bind_layer_norm_grad, _work_of_rows(2)),
        "layer_norm_weight_grad": _offer(_bind_layer_norm_weight_grad, _arrays(1)),
        "bias_grad": _offer(_bind_channel_sum, _arrays(0)),
        "batch_mean": _offer(_bind_mean, _arrays(0)),
        "batch_variance": _offer(_bind_variance, _arrays(1)),
        "batch_norm_grad": _offer(_bind_batch_norm_grad, _arrays(2)),
        "batch_norm_weight_grad": _offer(_bind_batch_norm_weight_grad, _arrays(1)),
    }
)
