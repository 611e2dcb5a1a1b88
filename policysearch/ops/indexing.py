"""Parts of tensors: slices, and tensors joined along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, Shape
from policysearch.ops.builder import Builder
from policysearch.values import InputError

MOST_PARTS = 256
"""Tensors that one concatenate can join."""


def _where(shape: Shape, attrs: Attrs) -> tuple[slice, ...]:
    axis = attrs["axis"] % len(shape)
    return (*(slice(None),) * axis, slice(attrs["start"], attrs["stop"], attrs.get("step", 1)))


def _slice_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    (given,) = inputs
    axis = attrs["axis"] % len(given)
    count = len(range(given[axis])[_where(given, attrs)[axis]])
    return (*given[:axis], count, *given[axis + 1 :])


def _slice_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    spread = np.zeros(attrs["shape"], np.float32, like=inputs[0])
    spread[_where(spread.shape, attrs)] = inputs[0]
    return spread


def _emit_slice_grad(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
    return b.emit(slice_grad, grad, attrs=attrs)


slice_grad = Op(
    "slice_grad",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _slice_grad,
    flops=lambda inputs, out, attrs: 0,
    keeps_format=True,
    pointwise=False,
)
"""Zeros of `shape` with the input where the slice was."""

take_slice = Op(
    "slice",
    _slice_shape,
    lambda inputs, attrs: inputs[0][_where(inputs[0].shape, attrs)],
    gradients=(_emit_slice_grad,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((3, 7, 2)).astype(np.float32),),
        {"axis": 1, "start": 1, "stop": 6, "step": 2},
    ),
    kind="move",
    keeps_format=True,
)
"""x[start:stop:step] along `axis`, as Python counts; `step` is positive, 1 if not given."""


def _put(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    result = inputs[0].copy()
    result[_where(result.shape, attrs)] = inputs[1] if len(inputs) > 1 else 0.0
    return result


slice_cleared = Op(
    "slice_cleared",
    lambda inputs, attrs: inputs[0],
    _put,
    flops=lambda inputs, out, attrs: 0,
    keeps_format=True,
    pointwise=False,
)
"""The input with zeros where the slice is."""

slice_put = Op(
    "slice_put",
    lambda inputs, attrs: inputs[0],
    _put,
    gradients=(
        lambda b, node, grad: b.emit(slice_cleared, grad, attrs=node.attributes),
        lambda b, node, grad: b.emit(take_slice, grad, attrs=node.attributes),
    ),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        tuple(rng.standard_normal((3, count, 2)).astype(np.float32) for count in (7, 3)),
        {"axis": 1, "start": 1, "stop": 6, "step": 2},
    ),
    keeps_format=True,
    pointwise=False,
)
"""The first input with the second where the slice is, as of `slice`."""


def _joined_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(inputs) > MOST_PARTS:
        raise InputError(f"concatenate: {len(inputs)} tensors; expected at most {MOST_PARTS}")
    axis = attrs["axis"] % len(inputs[0])
    extent = sum(shape[axis] for shape in inputs)
    return (*inputs[0][:axis], extent, *inputs[0][axis + 1 :])


def _cuts(shapes: Sequence[Shape], axis: int) -> list[tuple[int, int]]:
    """Return from where to where each part goes."""
    return list(pairwise(accumulate((shape[axis] for shape in shapes), initial=0)))


def _part_of_gradient(position: int, b: Builder, node: Node, grad: int) -> int:
    axis = node.attributes["axis"] % len(node.shape)
    start, stop = _cuts([b.shape(i) for i in node.inputs], axis)[position]
    return b.emit(take_slice, grad, attrs={"axis": axis, "start": start, "stop": stop})


_PARTS: tuple[GradientRule, ...] = tuple(
    partial(_part_of_gradient, position) for position in range(MOST_PARTS)
)

concatenate = Op(
    "concatenate",
    _joined_shape,
    lambda inputs, attrs: np.concatenate(inputs, attrs["axis"]),
    gradients=_PARTS,
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (
            rng.standard_normal((2, 3, 4)).astype(np.float32),
            rng.standard_normal((2, 1, 4)).astype(np.float32),
            rng.standard_normal((2, 2, 4)).astype(np.float32),
        ),
        {"axis": 1},
    ),
    keeps_format=True,
    pointwise=False,
)
"""The inputs side by side along `axis`; torch.cat."""
