"""Statistics of a batch and their running averages.

They are ops of their own, so that training feeds `batch_norm` those of the batch and evaluation the
running ones, and both are float32 whatever format x has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size
from policysearch.ops.batch_norm import along, like, share_of
from policysearch.ops.dense import channel_sums, channel_work


def _channels(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (inputs[0][1],)


def _bind_mean(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    total, share = channel_sums(inputs[0], out, work), share_of(inputs[0])

    def run() -> None:
        total()
        np.multiply(out, share, out=out)

    return run


def _bind_variance(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """The mean square of what is left without the mean: no difference of large numbers."""
    x, share = inputs[0], share_of(inputs[0])
    centred, rest = like(x, work), work[x.size :]
    mean, average = along(out, x), _bind_mean(inputs, out, attrs, rest)
    total = channel_sums(centred, out, rest)

    def run() -> None:
        average()
        np.subtract(x, mean, out=centred)
        np.multiply(centred, centred, out=centred)
        total()
        np.multiply(out, share, out=out)

    return run


def _example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((3, 4, 2, 3)).astype(np.float32),))


batch_mean = Op(
    "batch_mean",
    _channels,
    _bind_mean,
    gradients=(None,),
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
    work=lambda inputs, out, attrs: channel_work(inputs[0]),
    pinned=(0,),
)
"""Mean of every channel [channels]; the gradient through it is that of `batch_norm`."""

batch_variance = Op(
    "batch_variance",
    _channels,
    _bind_variance,
    gradients=(None,),
    flops=lambda inputs, out, attrs: 4 * size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
    work=lambda inputs, out, attrs: size(inputs[0]) + channel_work(inputs[0]),
    pinned=(0,),
)
"""Biased variance of every channel [channels]; the gradient through it is that of `batch_norm`."""


def _bind_average(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    old, new = inputs
    momentum = attrs["momentum"]
    keep, share = np.float32(1.0 - momentum), np.float32(momentum * attrs.get("factor", 1.0))
    fresh = work[: new.size].reshape(new.shape)

    def run() -> None:
        np.multiply(new, share, out=fresh)
        np.multiply(old, keep, out=out)
        np.add(out, fresh, out=out)

    return run


moving_average = Op(
    "moving_average",
    lambda inputs, attrs: inputs[0],
    _bind_average,
    gradients=(None, None),
    flops=lambda inputs, out, attrs: 3 * size(out),
    example=lambda rng: Example(
        tuple(rng.standard_normal((2, 5)).astype(np.float32)), {"momentum": 0.1, "factor": 1.25}
    ),
    placement="fp32",
    in_place=(0,),
    work=lambda inputs, out, attrs: size(out),
)
"""(1 - `momentum`) * old + `momentum` * `factor` * new: running statistics, as torch keeps them.

`factor` is n / (n - 1) for a variance, which torch keeps unbiased.
"""
