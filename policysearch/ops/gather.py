"""Values at places that whole numbers name, and what is added up there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.rounded_arithmetic import inner_arithmetic

MOST_INDICES = 8
"""Axes that one `index` can take numbers for."""

STEPS = "steps"
"""The attribute of an op whose parts each round to the format of its result, as additions do."""

Places = tuple[slice | NDArray[np.intp], ...]


def _along(shape: Shape, axis: int, numbers: FloatArray) -> Places:
    """Return the places of `numbers` along `axis`, each at its own place of the other axes."""
    places: list[NDArray[np.intp]] = list(np.indices(numbers.shape, np.intp, sparse=True))
    places[axis % len(shape)] = numbers.astype(np.intp)
    return tuple(places)


def places_of(shape: Shape, numbers: Sequence[FloatArray], attrs: Attrs) -> Places:
    """Return what numpy indexes by: along the attribute `axis`, or by one array for each `axes`."""
    if "axis" in attrs:
        return _along(shape, attrs["axis"], numbers[0])
    by_axis = dict(zip(attrs["axes"], numbers, strict=True))
    axes = range(max(by_axis) + 1)
    return tuple(by_axis[a].astype(np.intp) if a in by_axis else slice(None) for a in axes)


def _taken_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape of x at the places, as numpy and torch have it.

    What is indexed gives its axes where they lie side by side, else in front.
    """
    x, *numbers = inputs
    if "axis" in attrs:
        return numbers[0]
    axes = attrs["axes"]
    broadcast = np.broadcast_shapes(*numbers)
    rest = tuple(extent for axis, extent in enumerate(x) if axis not in axes)
    front = axes[0] if axes == tuple(range(axes[0], axes[-1] + 1)) else 0
    return (*rest[:front], *broadcast, *rest[front:])


def _taken(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, *numbers = inputs
    return x[places_of(x.shape, numbers, attrs)]


def added_at(start: FloatArray, places: Places, values: FloatArray, attrs: Attrs) -> FloatArray:
    """Return `start` with the values added at their places, one after the other.

    In float32, or each sum rounded onto the format INNER_FORMAT. Of one place, the first value is
    added in the first round, the second in the second.
    """
    flat = np.arange(start.size, dtype=np.intp, like=start).reshape(start.shape)[places].ravel()
    added = np.broadcast_to(values, start[places].shape).ravel()
    order = np.argsort(flat, kind="stable")
    sorted_places = flat[order]
    starts = np.flatnonzero(np.diff(sorted_places, prepend=-1))
    rounds = np.arange(len(flat)) - np.repeat(starts, np.diff(starts, append=len(flat)))
    total = np.array(start, np.float32, order="C", like=start).ravel()
    by_round = np.argsort(rounds, kind="stable")
    cuts = np.searchsorted(rounds[by_round], np.arange(rounds.max(initial=-1) + 2))
    round_to = None
    if attrs.get(INNER_FORMAT):
        round_to = inner_arithmetic(attrs[INNER_FORMAT], attrs)
    for first, end in pairwise(cuts):
        members = by_round[first:end]
        at = sorted_places[members]
        sums = total[at] + added[order[members]]
        total[at] = sums if round_to is None else round_to(sums)
    return total.reshape(start.shape)


def _taken_gradient(b: Builder, node: Node, grad: int) -> int:
    x, *numbers = node.inputs
    return b.emit(taken_grad, grad, *numbers, attrs={**node.attributes, "shape": b.shape(x)})


def _grad_forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, *numbers = inputs
    start = np.zeros(attrs["shape"], np.float32, like=grad)
    return added_at(start, places_of(start.shape, numbers, attrs), grad, attrs)


NUMBERS = tuple(range(1, MOST_INDICES + 1))

taken_grad = Op(
    "index_grad",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _grad_forward,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
    pinned=NUMBERS,
)
"""Zeros of `shape` to which the first input is added at the places."""


def numbers_below(rng: np.random.Generator, below: int, *shape: int) -> FloatArray:
    return rng.integers(0, below, shape).astype(np.float32)


def normal(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape).astype(np.float32)


index = Op(
    "index",
    _taken_shape,
    _taken,
    gradients=(_taken_gradient, *(None,) * MOST_INDICES),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (normal(rng, 3, 4, 5), numbers_below(rng, 3, 2, 1), numbers_below(rng, 5, 6)),
        {"axes": (0, 2)},
    ),
    keeps_format=True,
    pinned=NUMBERS,
    pointwise=False,
)
"""x at the whole numbers that the other inputs hold for its `axes`: x[:, i, :, j] in numpy.

The gradient adds what went to the same place: in float32, or with STEPS in its own format.
"""

gather = replace(
    index,
    name="gather",
    gradients=(_taken_gradient, None),
    example=lambda rng: Example(
        (normal(rng, 3, 4, 5), numbers_below(rng, 4, 2, 6, 5)), {"axis": 1}
    ),
    pinned=(1,),
)
"""x along `axis` at whole numbers, each at its own place of the other axes: torch.gather."""
