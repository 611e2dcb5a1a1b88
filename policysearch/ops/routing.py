"""Whole numbers: made of values by comparing them, of other numbers, or of nothing but a shape.

They have no gradient, and no policy rounds them; the values that they are made of it does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape


def _ranked_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    axis = attrs["axis"] % len(inputs[0])
    count = attrs.get("count") or inputs[0][axis]
    return (*inputs[0][:axis], count, *inputs[0][axis + 1 :])


def _ranked_places(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (x,) = inputs
    axis, descending = attrs["axis"], attrs.get("descending")
    if descending and attrs.get("count") == 1 and not attrs.get("first"):
        return np.argmax(x, axis, keepdims=True).astype(np.float32)
    nan = np.isnan(x)  # larger than any number, as torch has it
    keys = np.where(nan, np.float32(np.inf), x)
    by = (~nan, -keys) if descending else (nan, keys)
    order = np.lexsort(by, axis=axis)
    first = attrs.get("first", 0)
    places = np.arange(first, first + (attrs.get("count") or x.shape[axis]))
    return np.take(order, places, axis).astype(np.float32)


ranked = Op(
    "ranked",
    _ranked_shape,
    _ranked_places,
    example=lambda rng: Example(
        (rng.standard_normal((3, 7, 2)).astype(np.float32),),
        {"axis": 1, "descending": True, "count": 3},
    ),
    kind="reduce",
    pointwise=False,
)
"""The places along `axis` of the values in rising order, or `descending`; of equal ones the first.

`count` of them from the place `first` on, if given; all without.
"""


def _search(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    boundaries, x = inputs
    counts = np.searchsorted(boundaries, x, "right" if attrs.get("right") else "left")
    return counts.astype(np.float32)


searchsorted = Op(
    "searchsorted",
    lambda inputs, attrs: inputs[1],
    _search,
    example=lambda rng: Example(
        (np.array([-1.0, 0.0, 0.5], np.float32), rng.standard_normal((3, 4)).astype(np.float32)),
    ),
    pointwise=False,
)
"""How many of the rising boundaries [count] are below each value; or not above it, `right`."""


def _ones(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    classes = np.arange(attrs["classes"], dtype=np.float32)
    return (inputs[0][..., None] == classes).astype(np.float32)


one_hot = Op(
    "one_hot",
    lambda inputs, attrs: (*inputs[0], attrs["classes"]),
    _ones,
    example=lambda rng: Example((rng.integers(0, 4, (2, 3)).astype(np.float32),), {"classes": 4}),
    pointwise=False,
)
"""Rows [..., classes] of zeros with a one at each number."""


def _counted_places(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    numbers: FloatArray = np.arange(*attrs["range"]).astype(np.float32)
    return inputs[0] + numbers


arange = Op(
    "arange",
    lambda inputs, attrs: (len(range(*attrs["range"])),),
    _counted_places,
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example((np.zeros((), np.float32),), {"range": (3, 10, 2)}),
    pointwise=False,
)
"""The whole numbers of `range` (start, stop, step) added to one of no axes."""

eye = Op(
    "eye",
    lambda inputs, attrs: tuple(attrs["shape"]),
    lambda inputs, attrs: inputs[0] * np.eye(*attrs["shape"], dtype=np.float32, like=inputs[0]),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example((np.ones((), np.float32),), {"shape": (3, 4)}),
    pointwise=False,
)
"""A number of no axes where row and column have the same number, else zeros."""
