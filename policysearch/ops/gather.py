"""Values at places that whole numbers name: taken from there, written there, added there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from policysearch.formats import format_named
from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.elementwise import sum_to
from policysearch.ops.rounded_arithmetic import RoundedArithmetic

MOST_INDICES = 8
"""Axes that one `index` can take numbers for."""

STEPS = "steps"
"""The attribute of an op that adds in the format of its result: each addition is rounded."""

Places = tuple[slice | NDArray[np.intp], ...]


def _along(shape: Shape, axis: int, numbers: FloatArray) -> Places:
    """Return the places of `numbers` along `axis`, each at its own place of the other axes."""
    places: list[NDArray[np.intp]] = list(np.indices(numbers.shape, np.intp, sparse=True))
    places[axis % len(shape)] = numbers.astype(np.intp)
    return tuple(places)


def _places(shape: Shape, numbers: Sequence[FloatArray], attrs: Attrs) -> Places:
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
    return x[_places(x.shape, numbers, attrs)]


def _accumulated(start: FloatArray, places: Places, values: FloatArray, attrs: Attrs) -> FloatArray:
    """Return `start` with the values added at their places, one after the other.

    In float32, or each sum rounded onto the format INNER_FORMAT. Of one place, the first value is
    added in the first round, the second in the second.
    """
    flat = np.arange(start.size, dtype=np.intp).reshape(start.shape)[places].ravel()
    added = np.broadcast_to(values, start[places].shape).ravel()
    order = np.argsort(flat, kind="stable")
    sorted_places = flat[order]
    starts = np.flatnonzero(np.diff(sorted_places, prepend=-1))
    rounds = np.arange(len(flat)) - np.repeat(starts, np.diff(starts, append=len(flat)))
    total = np.array(start, np.float32, order="C").ravel()
    by_round = np.argsort(rounds, kind="stable")
    cuts = np.searchsorted(rounds[by_round], np.arange(rounds.max(initial=-1) + 2))
    round_to = None
    if attrs.get(INNER_FORMAT):
        round_to = RoundedArithmetic(format_named(attrs[INNER_FORMAT]))
    for first, end in pairwise(cuts):
        members = by_round[first:end]
        at = sorted_places[members]
        sums = total[at] + added[order[members]]
        total[at] = sums if round_to is None else round_to(sums)
    return total.reshape(start.shape)


def _written(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Return the first input with the second at the places; where some are equal the last stays."""
    x, values, *numbers = inputs
    if "axis" in attrs and values.ndim:
        values = values[tuple(slice(extent) for extent in numbers[0].shape)]
    places = _places(x.shape, numbers, attrs)
    if attrs.get("accumulate"):
        return _accumulated(x, places, values, attrs)
    result = np.array(x, np.float32)
    result[places] = values
    return result


def _taken_gradient(b: Builder, node: Node, grad: int) -> int:
    x, *numbers = node.inputs
    return b.emit(taken_grad, grad, *numbers, attrs={**node.attributes, "shape": b.shape(x)})


def _where(attrs: Attrs) -> Attrs:
    return {key: value for key, value in attrs.items() if key in ("axis", "axes")}


def _written_gradient(b: Builder, node: Node, grad: int) -> int:
    """Of what was there: nothing where it was written over, all where was added."""
    if node.attributes.get("accumulate"):
        return grad
    return b.emit(cleared, grad, *node.inputs[2:], attrs=_where(node.attributes))


def _values_gradient(b: Builder, node: Node, grad: int) -> int:
    _, values, *numbers = node.inputs
    attrs = _where(node.attributes)
    there = b.emit(gather if "axis" in attrs else index, grad, *numbers, attrs=attrs)
    shape = b.shape(values)
    if "axis" in attrs and b.shape(there) != shape:
        return b.emit(bordered, there, attrs={"shape": shape})
    return there if b.shape(there) == shape else b.emit(sum_to, there, attrs={"shape": shape})


def _grad_forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, *numbers = inputs
    start = np.zeros(attrs["shape"], np.float32)
    return _accumulated(start, _places(start.shape, numbers, attrs), grad, attrs)


def _cleared(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, *numbers = inputs
    result = np.array(x, np.float32)
    result[_places(x.shape, numbers, attrs)] = 0.0
    return result


def _bordered(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    result = np.zeros(attrs["shape"], np.float32)
    result[tuple(slice(extent) for extent in inputs[0].shape)] = inputs[0]
    return result


_NUMBERS = tuple(range(1, MOST_INDICES + 1))

taken_grad = Op(
    "index_grad",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _grad_forward,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
    pinned=_NUMBERS,
)
"""Zeros of `shape` to which the first input is added at the places."""

cleared = Op(
    "index_cleared",
    lambda inputs, attrs: inputs[0],
    _cleared,
    flops=lambda inputs, out, attrs: 0,
    keeps_format=True,
    pinned=_NUMBERS,
    pointwise=False,
)
"""The first input with zeros at the places."""

bordered = Op(
    "bordered",
    lambda inputs, attrs: tuple(attrs["shape"]),
    _bordered,
    flops=lambda inputs, out, attrs: 0,
    keeps_format=True,
    pointwise=False,
)
"""The input in the first places of zeros of `shape`."""


def _numbers(rng: np.random.Generator, below: int, *shape: int) -> FloatArray:
    return rng.integers(0, below, shape).astype(np.float32)


def _normal(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape).astype(np.float32)


index = Op(
    "index",
    _taken_shape,
    _taken,
    gradients=(_taken_gradient, *(None,) * MOST_INDICES),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (_normal(rng, 3, 4, 5), _numbers(rng, 3, 2, 1), _numbers(rng, 5, 6)), {"axes": (0, 2)}
    ),
    keeps_format=True,
    pinned=_NUMBERS,
    pointwise=False,
)
"""x at the whole numbers that the other inputs hold for its `axes`: x[:, i, :, j] in numpy.

The gradient adds what went to the same place: in float32, or with STEPS in its own format.
"""

gather = replace(
    index,
    name="gather",
    gradients=(_taken_gradient, None),
    example=lambda rng: Example((_normal(rng, 3, 4, 5), _numbers(rng, 4, 2, 6, 5)), {"axis": 1}),
    pinned=(1,),
)
"""x along `axis` at whole numbers, each at its own place of the other axes: torch.gather."""

index_put = Op(
    "index_put",
    lambda inputs, attrs: inputs[0],
    _written,
    gradients=(_written_gradient, _values_gradient, *(None,) * MOST_INDICES),
    flops=lambda inputs, out, attrs: size(inputs[1]) if attrs.get("accumulate") else 0,
    example=lambda rng: Example(
        (
            _normal(rng, 3, 4, 5),
            _normal(rng, 2, 1, 4),
            *(np.array(numbers, np.float32) for numbers in ([[0, 2]], [[3], [1]])),
        ),
        {"axes": (0, 2)},
    ),
    pinned=tuple(range(2, MOST_INDICES + 2)),
    pointwise=False,
)
"""The first input with the second, broadcast, at places as of `index`; or added, `accumulate`."""

scatter = replace(
    index_put,
    name="scatter",
    gradients=(_written_gradient, _values_gradient, None),
    example=lambda rng: Example(
        (_normal(rng, 2, 4), _normal(rng, 2, 3), np.array([[2, 0], [1, 3]], np.float32)),
        {"axis": 1},
    ),
    pinned=(2,),
)
"""The first input with the second along `axis` at places as of `gather`; or added, `accumulate`."""
