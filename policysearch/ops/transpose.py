"""The permutation of axes, with the splitting and joining of axes around it in one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape
from policysearch.ops.builder import Builder


def _permuted(x: Shape, attrs: Attrs) -> Shape:
    split = tuple(attrs.get("split", x))
    return tuple(split[axis] for axis in attrs["axes"])


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs.get("shape", _permuted(inputs[0], attrs)))


def permuted(x: FloatArray, out: FloatArray, attrs: Attrs) -> tuple[FloatArray, FloatArray] | None:
    """Return views of x and out of which the op is a plain copy; None where there are none.

    Joining axes that are not stored side by side copies, and such a copy is no view.
    """
    source = x.reshape(attrs.get("split", x.shape)).transpose(attrs["axes"])
    target = out.reshape(_permuted(x.shape, attrs))
    if np.may_share_memory(source, x) and np.may_share_memory(target, out):
        return source, target
    return None


def _bind_transpose(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, split, axes = inputs[0], attrs.get("split", inputs[0].shape), attrs["axes"]
    views = permuted(x, out, attrs)
    if views is not None:
        source, target = views
        return lambda: np.copyto(target, source)
    return lambda: np.copyto(out, x.reshape(split).transpose(axes).reshape(out.shape))


def _gradient(b: Builder, node: Node, grad: int) -> int:
    attrs, given = node.attributes, b.shape(node.inputs[0])
    back = tuple(int(axis) for axis in np.argsort(attrs["axes"]))
    split = _permuted(given, attrs)
    return b.emit(transpose, grad, attrs={"axes": back, "split": split, "shape": given})


transpose = Op(
    "transpose",
    _shape,
    _bind_transpose,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((6, 10)).astype(np.float32),),
        {"split": (2, 3, 2, 5), "axes": (2, 0, 1, 3), "shape": (4, 3, 5)},
    ),
    kind="move",
    keeps_format=True,
)
"""x with its axes in the order `axes`: output axis i is input axis axes[i].

Optional `split` is the shape x is seen under before that, `shape` the one it gets afterwards.
"""
