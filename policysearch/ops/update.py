"""Loss scaling, finite check and gradient clipping as ops of the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.rounding.rounder import quantise


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _scalar(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return ()


def _bind_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, factor = inputs
    return lambda: np.multiply(x, factor, out=out)


def _scale_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(scale_loss, grad, node.inputs[1])


def _scale_example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((3, 4)).astype(np.float32), np.array(8.0, np.float32)))


scale_loss = Op(
    "scale_loss",
    _first,
    _bind_scale,
    gradients=(_scale_gradient, None),
    example=_scale_example,
    placement="fp32",
)
unscale = Op(
    "unscale", _first, _bind_scale, example=_scale_example, placement="fp32", in_place=(0,)
)


def _all_finite(array: FloatArray) -> bool:
    """A NaN or an infinity shows in the sum of squares, and where that overflows, in the ends."""
    if np.isfinite(np.dot(array, array)):
        return True
    return bool(np.isfinite(np.maximum.reduce(array)) and np.isfinite(np.minimum.reduce(array)))


def _bind_finite(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    arrays = [array.ravel(order="K") for array in inputs]

    def run() -> None:
        out[()] = all(_all_finite(array) for array in arrays)

    return run


all_finite = Op(
    "all_finite",
    _scalar,
    _bind_finite,
    flops=lambda inputs, out, attrs: sum(size(shape) for shape in inputs),
    kind="reduce",
    placement="fp32",
)
"""1.0 where every element of every input is finite, else 0.0."""


def _bind_norm(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    arrays = [array.ravel(order="K") for array in inputs]
    inner = [_onto(format) for format in attrs.get("inner", ())]

    def whole() -> None:
        out[()] = np.sqrt(np.float32(sum(np.dot(a, a) for a in arrays)))

    def of_norms() -> None:
        norms = [kept(np.sqrt(np.dot(a, a))) for a, kept in zip(arrays, inner, strict=True)]
        out[()] = np.sqrt(np.float32(sum(norm * norm for norm in norms)))

    return of_norms if inner else whole


def _onto(format: str) -> Callable[[np.float32], np.float32]:
    """Return the function that rounds a number onto a format."""
    if format == "float32":
        return lambda value: value
    row = format_named(format)
    return lambda value: np.float32(quantise(np.asarray(value), row))


global_norm = Op(
    "global_norm",
    _scalar,
    _bind_norm,
    flops=lambda inputs, out, attrs: 2 * sum(size(shape) for shape in inputs),
    kind="reduce",
    placement="fp32",
)
"""Euclidean norm over all elements of all inputs; with `inner`, a format per input, that of their
norms, each rounded to its own.
"""


def _bind_clip(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, norm = inputs
    limit, kept = np.float32(attrs["limit"]), _onto(attrs.get("inner", "float32"))

    def run() -> None:
        inverse = kept(np.float32(1.0) / kept(np.float32(norm) + np.float32(1e-6)))
        factor = np.minimum(kept(limit * inverse), np.float32(1.0))
        np.multiply(grad, factor, out=out)

    return run


clip = Op("clip", _first, _bind_clip, placement="fp32", in_place=(0,))
"""grad * min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_, which multiplies with
the inverse; the factor is found in the format `inner`.
"""


def _bind_clip_value(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    (grad,) = inputs
    limit = np.float32(attrs["limit"])
    return lambda: np.clip(grad, -limit, limit, out=out)


clip_value = Op("clip_value", _first, _bind_clip_value, placement="fp32", in_place=(0,))
"""grad, no element above `limit` or below -`limit`, as torch.nn.utils.clip_grad_value_."""
