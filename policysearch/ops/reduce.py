"""Sums and means over axes, and the broadcasting that is their gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import scale, sum_to


def axes_of(shape: Shape, attrs: Attrs) -> tuple[int, ...]:
    """Return the axes that are summed over, counted from the front; all where none are named."""
    named = attrs.get("axes")
    return tuple(range(len(shape))) if named is None else tuple(a % len(shape) for a in named)


def kept(shape: Shape, axes: Sequence[int]) -> Shape:
    """Return the shape with extent 1 along these axes, counted from the front."""
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def reduced(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape without `axes`, or, with `keepdim`, with extent 1 along them."""
    axes = axes_of(inputs[0], attrs)
    if attrs.get("keepdim"):
        return kept(inputs[0], axes)
    return tuple(extent for axis, extent in enumerate(inputs[0]) if axis not in axes)


def count_of(shape: Shape, attrs: Attrs) -> int:
    """Return how many values each result is made of."""
    return size(tuple(shape[axis] for axis in axes_of(shape, attrs)))


def _sum(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    axes = axes_of(inputs[0].shape, attrs)
    total = np.add.reduce(inputs[0], axis=axes, keepdims=True)
    return total.reshape(reduced([inputs[0].shape], attrs))


def _mean(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return _sum(inputs, attrs) * np.float32(1.0 / count_of(inputs[0].shape, attrs))


def _spread(b: Builder, node: Node, grad: int) -> int:
    shape = b.shape(node.inputs[0])
    attrs = {"shape": shape, "axes": axes_of(shape, node.attributes)}
    return b.emit(broadcast_to, grad, attrs=attrs)


def _spread_share(b: Builder, node: Node, grad: int) -> int:
    count = count_of(b.shape(node.inputs[0]), node.attributes)
    return _spread(b, node, b.emit(scale, grad, attrs={"factor": 1.0 / count}))


def _example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((2, 3, 4, 5)).astype(np.float32),), {"axes": (1, -1)})


sum_over: Op = Op(
    "sum",
    reduced,
    _sum,
    gradients=(_spread,),
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
)
"""Sum over `axes` (all where none are named), kept with extent 1 where `keepdim` is true."""

mean: Op = Op(
    "mean",
    reduced,
    _mean,
    gradients=(_spread_share,),
    flops=lambda inputs, out, attrs: size(inputs[0]) + size(out),
    example=_example,
    kind="reduce",
)
"""Mean over `axes`, as `sum`."""


def _broadcast(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, shape = inputs[0], tuple(attrs["shape"])
    if attrs.get("axes") is not None:
        x = x.reshape(kept(shape, attrs["axes"]))
    return np.broadcast_to(x, shape)


def _broadcast_gradient(b: Builder, node: Node, grad: int) -> int:
    if node.attributes.get("axes") is None:
        return b.emit(sum_to, grad, attrs={"shape": b.shape(node.inputs[0])})
    kept = len(b.shape(node.inputs[0])) == len(node.shape)
    return b.emit(sum_over, grad, attrs={"axes": node.attributes["axes"], "keepdim": kept})


broadcast_to: Op = Op(
    "broadcast_to",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _broadcast,
    gradients=(_broadcast_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((3, 1, 5)).astype(np.float32),), {"shape": (2, 3, 4, 5)}
    ),
    kind="move",
    keeps_format=True,
)
"""x repeated to `shape` by the broadcasting rules of numpy and torch.

With `axes`, x lacks these axes of `shape`, or has them with extent 1, as a sum over them has.
"""
