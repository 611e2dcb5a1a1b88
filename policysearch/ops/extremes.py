"""The largest and the smallest value over axes, and where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.reduce import axes_of, kept, reduced

FIRST = "first"
"""The attribute of an extreme whose first place has the whole gradient; else equal ones share."""


def _first(chosen: NDArray[np.bool_], axes: Sequence[int]) -> NDArray[np.bool_]:
    """Return what is chosen without all but the first along these axes, in their order."""
    last = tuple(range(-len(axes), 0))
    moved = np.moveaxis(chosen, axes, last)
    groups = moved.reshape(*moved.shape[: -len(axes)], -1)
    one = np.zeros_like(groups)
    np.put_along_axis(one, groups.argmax(-1)[..., np.newaxis], True, -1)
    return np.moveaxis((one & groups).reshape(moved.shape), last, axes)


def _gradient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, x, y = inputs
    axes = axes_of(x.shape, attrs)
    grad, y = (each.reshape(kept(x.shape, axes)) for each in (grad, y))
    chosen = x == y
    if attrs.get(FIRST):
        chosen = _first(chosen, axes)
    else:
        counts = np.sum(chosen, axes, np.float32, keepdims=True)
        grad = (grad / np.maximum(counts, np.float32(1.0))).astype(np.float32)
    return np.where(chosen, grad, np.float32(0.0))


extreme_grad = Op(
    "extreme_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_gradient,
    flops=lambda inputs, out, attrs: 3 * size(out),
    kind="reduce",
)


def _distinct(rng: np.random.Generator) -> Example:
    """Values 0.1 apart, so that none overtakes another under a small difference."""
    order = rng.permutation(2 * 3 * 5).reshape(2, 3, 5)
    return Example(((order * 0.1).astype(np.float32),), {"axes": (0, 2)})


def _extreme(name: str, reduce: Callable[..., FloatArray]) -> Op:
    def forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
        (x,) = inputs
        return reduce(x, axis=axes_of(x.shape, attrs)).reshape(reduced([x.shape], attrs))

    def gradient(b: Builder, node: Node, grad: int) -> int:
        return b.emit(extreme_grad, grad, node.inputs[0], node.id, attrs=node.attributes)

    return Op(
        name,
        reduced,
        forward,
        gradients=(gradient,),
        flops=lambda inputs, out, attrs: size(inputs[0]),
        example=_distinct,
        kind="reduce",
        keeps_format=True,
    )


max_over = _extreme("max", np.maximum.reduce)
min_over = _extreme("min", np.minimum.reduce)
"""The extreme over `axes` (all where none are named), kept with extent 1 where `keepdim` is true.

Equal values share the gradient evenly, or, FIRST, the first has it.
"""


def _place_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return reduced(inputs, {**attrs, "axes": (attrs["axis"],)})


def _place(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (x,) = inputs
    find = np.argmin if attrs.get("smallest") else np.argmax
    places = find(x, axis=attrs["axis"]).astype(np.float32)
    return places.reshape(_place_shape([x.shape], attrs))


argmax = Op(
    "argmax",
    _place_shape,
    _place,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=lambda rng: Example(_distinct(rng).inputs, {"axis": 1}),
    kind="reduce",
)
"""Where along `axis` the largest value is, or the `smallest`: the first of equal ones."""


def _place_so_far(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, axis = inputs[0], attrs["axis"]
    extreme = (np.minimum if attrs.get("smallest") else np.maximum).accumulate(x, axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    numbers = np.arange(x.shape[axis], dtype=np.int64).reshape(shape)
    reached = np.where((x == extreme) | np.isnan(x), numbers, 0)
    return np.maximum.accumulate(reached, axis).astype(np.float32)


place_so_far = Op(
    "cummax_place",
    lambda inputs, attrs: inputs[0],
    _place_so_far,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example(_distinct(rng).inputs, {"axis": 1}),
    kind="reduce",
)
"""Where the largest value up to each along `axis` is, or the `smallest`: the last of equal ones."""
