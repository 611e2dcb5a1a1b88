"""Loss scaling, finite check and gradient clipping as ops of the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, Example, FloatArray, Graph, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import same_shape, ufunc
from policysearch.rounding.rounder import quantise


def _scalar(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return ()


def _scale_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(scale_loss, grad, node.inputs[1])


def _scale_example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((3, 4)).astype(np.float32), np.array(8.0, np.float32)))


scale_loss = Op(
    "scale_loss",
    same_shape,
    ufunc(np.multiply),
    gradients=(_scale_gradient, None),
    example=_scale_example,
    placement="fp32",
)
unscale = Op(
    "unscale",
    same_shape,
    ufunc(np.multiply),
    example=_scale_example,
    placement="fp32",
    in_place=(0,),
)


def _divide(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return inputs[0] / np.float32(attrs["parts"])


def _divide_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(divide_loss, grad, attrs=node.attributes)


divide_loss = Op(
    "divide_loss",
    same_shape,
    _divide,
    gradients=(_divide_gradient,),
    example=lambda rng: Example((rng.standard_normal((3, 4)).astype(np.float32),), {"parts": 3}),
    placement="fp32",
)
"""The loss of a micro-batch over their number in a step, `parts`: a division, as torch's on a CPU.
"""
accumulate = Op("accumulate", same_shape, ufunc(np.add), placement="fp32", in_place=(0,))
"""The sum of gradients so far and that of one more micro-batch, in the format of the sum."""


def micro_batches(graph: Graph) -> int:
    """Return over how many micro-batches a step sums its gradients; 1 where it sums none."""
    parts = (node.attributes["parts"] for node in graph.nodes if node.op is divide_loss)
    return next(parts, 1)


def _is_finite(array: FloatArray) -> bool:
    """A NaN or an infinity shows in the sum of squares, and where that overflows, in the ends."""
    flat = array.ravel(order="K")
    if np.isfinite(np.dot(flat, flat)):
        return True
    return bool(np.isfinite(np.maximum.reduce(flat)) and np.isfinite(np.minimum.reduce(flat)))


all_finite = Op(
    "all_finite",
    _scalar,
    lambda inputs, attrs: np.float32(all(map(_is_finite, inputs))),
    flops=lambda inputs, out, attrs: sum(size(shape) for shape in inputs),
    kind="reduce",
    placement="fp32",
)
"""1.0 where every element of every input is finite, else 0.0."""


def _global_norm(inputs: Sequence[FloatArray], attrs: Attrs) -> np.float32:
    squares = [np.dot(flat, flat) for flat in (array.ravel(order="K") for array in inputs)]
    if not attrs.get("inner"):
        return np.sqrt(sum(squares))
    norms = [_onto(f)(np.sqrt(square)) for square, f in zip(squares, attrs["inner"], strict=True)]
    return np.sqrt(sum(norm * norm for norm in norms))


def _onto(format: str) -> Callable[[Any], Any]:
    """Return the function that rounds a number onto a format."""
    if format == "float32":
        return lambda value: value
    row = format_named(format)
    return lambda value: quantise(value, row)[()]


global_norm = Op(
    "global_norm",
    _scalar,
    _global_norm,
    flops=lambda inputs, out, attrs: 2 * sum(size(shape) for shape in inputs),
    kind="reduce",
    placement="fp32",
)
"""Euclidean norm over all elements of all inputs; with `inner`, a format per input, that of their
norms, each rounded to its own.
"""


def _clip(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, norm = inputs
    limit, rounded = np.float32(attrs["limit"]), _onto(attrs.get("inner", "float32"))
    inverse = rounded(np.float32(1.0) / rounded(norm + np.float32(1e-6)))
    return grad * np.minimum(rounded(limit * inverse), np.float32(1.0))


clip = Op("clip", same_shape, _clip, placement="fp32", in_place=(0,))
"""grad * min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_, which multiplies with
the inverse; the factor is found in the format `inner`.
"""


def _clip_value(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    limit = np.float32(attrs["limit"])
    return np.clip(inputs[0], -limit, limit)


clip_value = Op("clip_value", same_shape, _clip_value, placement="fp32", in_place=(0,))
"""grad, no element above `limit` or below -`limit`, as torch.nn.utils.clip_grad_value_."""
