"""Import rules: the layers torch keeps whole, with their parameters and statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Shape, size
from policysearch.importers.attention import matmul
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import dense, elementwise, exponents
from policysearch.ops.batch_norm import batch_mean, batch_variance, moving_average
from policysearch.ops.batch_norm import batch_norm as batch_norm_op
from policysearch.ops.builder import Builder
from policysearch.ops.composite import Emit, composite
from policysearch.ops.embedding import embedding as embedding_op
from policysearch.ops.layer_norm import layer_norm as layer_norm_op
from policysearch.ops.layer_norm import layer_statistics
from policysearch.ops.reduce import mean
from policysearch.ops.shape import reshape


def linear(
    t: Tracer, x: Tensor, weight: Tensor, bias: Tensor | None = None, apart: bool = False
) -> Tensor:
    """x w^T + b over the last axis of x; `apart`: the product is rounded before b is added."""
    made = t.emit_nodes(dense.matmul, t.rows(x), t.full(weight), transpose_b=True)
    if bias is not None:
        attrs: dict[str, Any] = {"apart": True} if apart else {}
        made = t.emit_nodes(dense.bias, made.id, t.full(bias), **attrs)
    return t.view(made, (*x.shape[:-1], weight.shape[0]))


def addmm(
    t: Tracer, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    if (beta, alpha) != (1, 1) or len(bias.shape) != 1:
        raise refuse(f"beta {beta}, alpha {alpha}", "use 1 and a bias vector")
    made = matmul(t, a, b)
    return t.view(t.emit_nodes(dense.bias, t.rows(made), t.full(bias)), made.shape)


def embedding(
    t: Tracer,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    *_: Any,
) -> Tensor:
    """Look rows up; the row of `padding_idx` gets no gradient, as in torch."""
    if scale_grad_by_freq:
        raise refuse("scale_grad_by_freq", "leave it out")
    attrs: dict[str, Any] = {"padding_index": padding_idx} if padding_idx >= 0 else {}
    rows = t.shaped(indices, (size(indices.shape),))
    made = t.emit_nodes(embedding_op, t.full(weight), rows, **attrs)
    return t.view(made, (*indices.shape, weight.shape[1]))


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
    made = t.emit_nodes(layer_norm_op, rows, statistics, *parameters)
    return t.view(made, x.shape)


def rms_norm(
    t: Tracer, x: Tensor, normalized: Sequence[int], weight: Tensor | None = None, eps: Any = None
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight in one call; float32's epsilon by default."""
    features = size(tuple(normalized))
    epsilon = float(np.finfo(np.float32).eps) if eps is None else float(eps)
    given = [t.rows(x, features)]
    if weight is not None:
        given.append(t.shaped(weight, (features,)))

    def emit(b: Builder, given: Sequence[int]) -> int:
        square = b.emit(elementwise.multiply, given[0], given[0])
        shifted = b.emit(
            elementwise.shift,
            b.emit(mean, square, attrs={"axes": (1,), "keepdim": True}),
            attrs={"amount": epsilon},
        )
        made = b.emit(elementwise.multiply, given[0], b.emit(exponents.rsqrt, shifted))
        return b.emit(elementwise.multiply, made, given[1]) if len(given) > 1 else made

    return _called(t, "rms_norm", "rsqrt", given, emit, epsilon=epsilon, shape=x.shape)


def _called(
    t: Tracer, name: str, source: str, given: Sequence[int], emit: Emit, shape: Shape, **attrs: Any
) -> Tensor:
    """Emit a call of torch as one op, in the op list of another; return its result in `shape`."""
    op = composite(name, [t.b.shape(i) for i in given], emit)
    return t.view(t.emit_nodes(op, *given, source=source, **attrs), shape)


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
        batch, kept = training, []
    else:
        batch, kept = training and t.training, [t.full(running_mean), t.full(running_var)]
    if batch or not kept:
        attrs["training"] = True
        found = [t.emit_nodes(op, node).id for op in (batch_mean, batch_variance)]
        for old, new, factor in zip(kept, found, (1.0, _unbiased(x)), strict=False):
            name = t.b.nodes[old].name
            last = t.statistics.get(name, old)  # a norm that is called again goes on from there
            moved = t.emit_nodes(moving_average, last, new, momentum=momentum, factor=factor)
            t.statistics[name] = moved.id
        kept = found
    return t.emit_nodes(batch_norm_op, node, *kept, *scales, **attrs)


def _unbiased(x: Tensor) -> float:
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
    given = [t.rows(x, size(x.shape[1:]) // groups)]
    given += [t.shaped(p, (channels, 1)) for p in (weight, bias) if p is not None]

    def emit(b: Builder, given: Sequence[int]) -> int:
        statistics = b.emit(layer_statistics, given[0], attrs={"epsilon": eps})
        plain = b.emit(layer_norm_op, given[0], statistics)
        made = b.emit(reshape, plain, attrs={"shape": (count, channels, places)})
        ops = (elementwise.multiply, elementwise.add)
        for op, p in zip(ops, given[1:], strict=False):
            made = b.emit(op, made, p)
        return made

    return _called(t, "group_norm", "layer_norm", given, emit, epsilon=eps, shape=x.shape)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "linear": linear,
        "addmm": addmm,
        "embedding": embedding,
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "batch_norm": batch_norm,
        "group_norm": group_norm,
    }
)
