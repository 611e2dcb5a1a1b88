"""Ops that only relabel, move or leave out values: reshape, permuted axes, flip, triangles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder


def _new_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    shape = tuple(attrs["shape"])
    if -1 in shape:
        rest = -size(shape)
        return tuple(size(inputs[0]) // rest if extent == -1 else extent for extent in shape)
    return shape


def _reshape_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(reshape, grad, attrs={"shape": b.shape(node.inputs[0])})


reshape = Op(
    "reshape",
    _new_shape,
    lambda inputs, attrs: inputs[0].reshape(attrs["shape"]),
    gradients=(_reshape_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 4, 5)).astype(np.float32),), {"shape": (2, 60)}
    ),
    kind="move",
    keeps_format=True,
)
"""The same values under a new shape, in the order of the logical axes; one extent may be -1."""


def permuted(x: Shape, attrs: Attrs) -> Shape:
    """Return the shape of a transposed x before its axes are joined."""
    split = tuple(attrs.get("split", x))
    return tuple(split[axis] for axis in attrs["axes"])


def _transposed_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs.get("shape", permuted(inputs[0], attrs)))


def _transpose(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (x,) = inputs
    moved = x.reshape(attrs.get("split", x.shape)).transpose(attrs["axes"])
    return moved.reshape(attrs.get("shape", moved.shape))


def _transpose_gradient(b: Builder, node: Node, grad: int) -> int:
    attrs, shape = node.attributes, b.shape(node.inputs[0])
    back = tuple(int(axis) for axis in np.argsort(attrs["axes"]))
    split = permuted(shape, attrs)
    return b.emit(transpose, grad, attrs={"axes": back, "split": split, "shape": shape})


transpose = Op(
    "transpose",
    _transposed_shape,
    _transpose,
    gradients=(_transpose_gradient,),
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

stop_gradient = Op(
    "stop_gradient",
    lambda inputs, attrs: inputs[0],
    lambda inputs, attrs: inputs[0],
    gradients=(None,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example((rng.standard_normal((3, 4)).astype(np.float32),)),
    kind="move",
    keeps_format=True,
)
"""The input, as a constant to what is differentiated: no gradient passes."""


def _flip_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(flip, grad, attrs=node.attributes)


flip: Op = Op(
    "flip",
    lambda inputs, attrs: inputs[0],
    lambda inputs, attrs: np.flip(inputs[0], attrs["axes"]),
    gradients=(_flip_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 4)).astype(np.float32),), {"axes": (0, 2)}
    ),
    kind="move",
    keeps_format=True,
)
"""x with the order of its values along `axes` reversed."""


def _triangle(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return (np.triu if attrs.get("upper") else np.tril)(inputs[0], attrs["diagonal"])


def _triangle_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(triangle, grad, attrs=node.attributes)


triangle: Op = Op(
    "triangle",
    lambda inputs, attrs: inputs[0],
    _triangle,
    gradients=(_triangle_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 4)).astype(np.float32),), {"diagonal": 1}
    ),
    kind="move",
    keeps_format=True,
)
"""The matrices of the last two axes, 0 above `diagonal`, or, `upper`, below it."""
