"""Ops that only relabel or move values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Builder, Example, FloatArray, Node, Op, Shape, size


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    given = tuple(attrs["shape"])
    if -1 in given:
        rest = -size(given)
        return tuple(size(inputs[0]) // rest if extent == -1 else extent for extent in given)
    return given


def _bind_reshape(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """Copy axis by axis where, batch last, one side is a contiguous array; else through numpy."""
    x = inputs[0]
    if x.ndim and out.ndim and len(x) == len(out):
        source, target = np.moveaxis(x, 0, -1), np.moveaxis(out, 0, -1)
        if target.flags.c_contiguous:
            target = target.reshape(source.shape)
            return lambda: np.copyto(target, source)
        if source.flags.c_contiguous:
            source = source.reshape(target.shape)
            return lambda: np.copyto(target, source)
    return lambda: np.copyto(out, x.reshape(out.shape))


def _gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(reshape, grad, attrs={"shape": b.shape(node.inputs[0])})


reshape = Op(
    "reshape",
    _shape,
    _bind_reshape,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 4, 5)).astype(np.float32),), {"shape": (2, 60)}
    ),
    kind="move",
    keeps_format=True,
)
"""The same values under a new shape, in the order of the logical axes; one extent may be -1."""
