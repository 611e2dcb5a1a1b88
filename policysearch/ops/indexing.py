"""Parts of tensors: slices, and tensors joined along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def _bind_slice(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    part = inputs[0][_where(inputs[0].shape, attrs)]
    return lambda: np.copyto(out, part)


def _bind_slice_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, part = inputs[0], out[_where(out.shape, attrs)]

    def run() -> None:
        out.fill(0.0)
        np.copyto(part, grad)

    return run


def _emit_slice_grad(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
    return b.emit(slice_grad, grad, attrs=attrs)


slice_grad = Op(
    "slice_grad",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _bind_slice_grad,
    flops=lambda inputs, out, attrs: 0,
    keeps_format=True,
    pointwise=False,
)
"""Zeros of `shape` with the input where the slice was."""

take_slice = Op(
    "slice",
    _slice_shape,
    _bind_slice,
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


def _joined(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    if len(inputs) > MOST_PARTS:
        raise InputError(f"concatenate: {len(inputs)} tensors; expected at most {MOST_PARTS}")
    axis = attrs["axis"] % len(inputs[0])
    extent = sum(shape[axis] for shape in inputs)
    return (*inputs[0][:axis], extent, *inputs[0][axis + 1 :])


def _cuts(shapes: Sequence[Shape], axis: int) -> list[tuple[int, int]]:
    """Return from where to where each part goes."""
    return list(pairwise(accumulate((shape[axis] for shape in shapes), initial=0)))


def _bind_concatenate(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    axis = attrs["axis"] % out.ndim
    cuts = _cuts([x.shape for x in inputs], axis)
    places = [
        (out[_where(out.shape, {"axis": axis, "start": start, "stop": stop})], x)
        for x, (start, stop) in zip(inputs, cuts, strict=True)
    ]

    def run() -> None:
        for place, x in places:
            np.copyto(place, x)

    return run


def _part_of_gradient(position: int, b: Builder, node: Node, grad: int) -> int:
    axis = node.attributes["axis"] % len(node.shape)
    start, stop = _cuts([b.shape(i) for i in node.inputs], axis)[position]
    return b.emit(take_slice, grad, attrs={"axis": axis, "start": start, "stop": stop})


_PARTS: tuple[GradientRule, ...] = tuple(
    partial(_part_of_gradient, position) for position in range(MOST_PARTS)
)

concatenate = Op(
    "concatenate",
    _joined,
    _bind_concatenate,
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
