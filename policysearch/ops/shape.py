"""Ops that only relabel or move values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import mul

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    given = tuple(attrs["shape"])
    if -1 in given:
        rest = -size(given)
        return tuple(size(inputs[0]) // rest if extent == -1 else extent for extent in given)
    return given


def _common_split(a: Shape, b: Shape) -> Shape | None:
    """Return the coarsest shape that both `a` and `b` only join axes of; None without one."""
    edges = sorted({1, *accumulate(a, mul), *accumulate(b, mul)})
    if any(high % low for low, high in pairwise(edges)):
        return None
    return tuple(high // low for low, high in pairwise(edges))


def seen_alike(
    x: FloatArray, out: FloatArray, attrs: Attrs
) -> tuple[FloatArray, FloatArray] | None:
    """Return views of x and out of which reshape is a plain copy; None where there are none.

    Seen under their common split, both sides are views, whatever their order in storage.
    """
    split = _common_split(x.shape, out.shape)
    if split is not None:
        source, target = x.reshape(split), out.reshape(split)
        if np.may_share_memory(source, x) and np.may_share_memory(target, out):
            return source, target
    return None


def _bind_reshape(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, views = inputs[0], seen_alike(inputs[0], out, attrs)
    if views is not None:
        source, target = views
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
