"""Import rules: norms, with their parameters and running statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Shape, size
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import elementwise, exponentials
from policysearch.ops.batch_norm import batch_mean, batch_variance, moving_average
from policysearch.ops.batch_norm import batch_norm as batch_norm_op
from policysearch.ops.builder import Builder
from policysearch.ops.composite import Emit, composite
from policysearch.ops.layer_norm import layer_norm as layer_norm_op
from policysearch.ops.layer_norm import layer_statistics
from policysearch.ops.reduce import mean
from policysearch.ops.shape import reshape


def layer_norm(
    t: Tracer,
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    features = size(tuple(normalized))
    parameters = [
        t.shaped(p, (features,)) if p is not None else t.filled(value, (features,))
        for p, value in ((weight, 1.0), (bias, 0.0))
    ]
    rows = t.rows(x, features)
    statistics = t.emit_nodes(layer_statistics, rows, epsilon=eps).id
    result = t.emit_nodes(layer_norm_op, rows, statistics, *parameters)
    return t.view(result, x.shape)


def rms_norm(
    t: Tracer, x: Tensor, normalized: Sequence[int], weight: Tensor | None = None, eps: Any = None
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight in one call; float32's epsilon by default."""
    features = size(tuple(normalized))
    epsilon = float(np.finfo(np.float32).eps) if eps is None else float(eps)
    operands = [t.rows(x, features)]
    if weight is not None:
        operands.append(t.shaped(weight, (features,)))

    def emit(b: Builder, operands: Sequence[int]) -> int:
        # in torch's order (`aten/src/ATen/native/layer_norm.cpp`), of which each step can round
        square = b.emit(elementwise.multiply, operands[0], operands[0])
        shifted = b.emit(
            elementwise.shift,
            b.emit(mean, square, attrs={"axes": (1,), "keepdim": True}),
            attrs={"amount": epsilon},
        )
        result = b.emit(elementwise.multiply, operands[0], b.emit(exponentials.rsqrt, shifted))
        return b.emit(elementwise.multiply, result, operands[1]) if len(operands) > 1 else result

    return _composite(t, "rms_norm", "rsqrt", operands, emit, epsilon=epsilon, shape=x.shape)


def _composite(
    t: Tracer,
    name: str,
    source: str,
    operands: Sequence[int],
    emit: Emit,
    shape: Shape,
    **attrs: Any,
) -> Tensor:
    """Emit a call of torch as one op, in the op list of another; return its result in `shape`."""
    op = composite(name, [t.b.shape(i) for i in operands], emit)
    return t.view(t.emit_nodes(op, *operands, source=source, **attrs), shape)


def batch_norm(
    t: Tracer,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Tensor:
    """Normalise by the batch in training, by the running statistics in evaluation.

    The running variance takes the unbiased one, as in torch.
    """
    channels = (x.shape[1],)
    node = t.full(x)
    scales = [
        t.full(p) if p is not None else t.filled(value, channels)
        for p, value in ((weight, 1.0), (bias, 0.0))
    ]
    attrs: dict[str, Any] = {"epsilon": eps}
    if running_mean is None or running_var is None:
        batch, statistics = training, []
    else:
        batch, statistics = training and t.training, [t.full(running_mean), t.full(running_var)]
    if batch or not statistics:
        attrs["training"] = True
        measured = [t.emit_nodes(op, node).id for op in (batch_mean, batch_variance)]
        for old, new, factor in zip(statistics, measured, (1.0, _unbiased_factor(x)), strict=False):
            name = t.b.nodes[old].name
            last = t.statistics.get(name, old)  # a norm that is called again goes on from there
            average = t.emit_nodes(moving_average, last, new, momentum=momentum, factor=factor)
            t.statistics[name] = average.id
        statistics = measured
    return t.emit_nodes(batch_norm_op, node, *statistics, *scales, **attrs)


def _unbiased_factor(x: Tensor) -> float:
    count = size(x.shape) // x.shape[1]
    if count < 2:
        raise refuse("one value per channel in training", "use a larger batch")
    return count / (count - 1)


def group_norm(
    t: Tracer,
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *_: Any,
) -> Tensor:
    """Normalise each group of channels of each example, then scale each channel, in one call."""
    count, channels = x.shape[:2]
    places = size(x.shape[2:])
    operands = [t.rows(x, size(x.shape[1:]) // groups)]
    operands += [t.shaped(p, (channels, 1)) for p in (weight, bias) if p is not None]

    def emit(b: Builder, operands: Sequence[int]) -> int:
        statistics = b.emit(layer_statistics, operands[0], attrs={"epsilon": eps})
        plain = b.emit(layer_norm_op, operands[0], statistics)
        result = b.emit(reshape, plain, attrs={"shape": (count, channels, places)})
        ops = (elementwise.multiply, elementwise.add)
        for op, p in zip(ops, operands[1:], strict=False):
            result = b.emit(op, result, p)
        return result

    return _composite(t, "group_norm", "layer_norm", operands, emit, epsilon=eps, shape=x.shape)


def instance_norm(
    t: Tracer,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    *_: Any,
) -> Tensor:
    """Normalise every channel of every example by itself: groups of one channel, in one call."""
    if running_mean is not None:
        raise refuse("running statistics", "use track_running_stats=False")
    return group_norm(t, x, x.shape[1], weight, bias, eps)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "batch_norm": batch_norm,
        "group_norm": group_norm,
        "instance_norm": instance_norm,
    }
)
