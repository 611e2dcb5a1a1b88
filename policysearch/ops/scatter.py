"""Values written, or added, at places that whole numbers name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import sum_to
from policysearch.ops.gather import (
    MOST_INDICES,
    NUMBERS,
    added_at,
    gather,
    index,
    normal,
    places_of,
)


def _written(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """Return the first input with the second at the places; where some are equal the last stays."""
    x, values, *numbers = inputs
    if "axis" in attrs and values.ndim:
        values = values[tuple(slice(extent) for extent in numbers[0].shape)]
    places = places_of(x.shape, numbers, attrs)
    if attrs.get("accumulate"):
        return added_at(x, places, values, attrs)
    result = x.copy()
    result[places] = values
    return result


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
    return there if b.shape(there) == shape else b.emit(sum_to, there, attrs={"shape": shape})


def _cleared_values(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, *numbers = inputs
    result = x.copy()
    result[places_of(x.shape, numbers, attrs)] = 0.0
    return result


cleared = Op(
    "index_cleared",
    lambda inputs, attrs: inputs[0],
    _cleared_values,
    flops=lambda inputs, out, attrs: 0,
    keeps_format=True,
    pinned=NUMBERS,
    pointwise=False,
)
"""The first input with zeros at the places."""

index_put = Op(
    "index_put",
    lambda inputs, attrs: inputs[0],
    _written,
    gradients=(_written_gradient, _values_gradient, *(None,) * MOST_INDICES),
    flops=lambda inputs, out, attrs: size(inputs[1]) if attrs.get("accumulate") else 0,
    example=lambda rng: Example(
        (
            normal(rng, 3, 4, 5),
            normal(rng, 2, 1, 4),
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
        (normal(rng, 2, 4), normal(rng, 2, 2), np.array([[2, 0], [1, 3]], np.float32)),
        {"axis": 1},
    ),
    pinned=(2,),
)
"""The first input with the second along `axis` at places as of `gather`; or added, `accumulate`."""


def _extreme(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, values, numbers = inputs
    places: Any = places_of(x.shape, [numbers], attrs)
    find, worst = (np.minimum, np.inf) if attrs.get("smallest") else (np.maximum, -np.inf)
    result = x.copy()
    if attrs.get("alone"):
        result[places] = np.float32(worst)
    find.at(result, places, _met(values, numbers))
    return result


def _met(values: FloatArray, numbers: FloatArray) -> FloatArray:
    """Return the values that there are numbers for."""
    return values[tuple(slice(extent) for extent in numbers.shape)]


def _shares(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The gradient of one side: equal values share it, what was there too, as in torch.

    There (`FunctionsManual.cpp`) it counts even where it is left `alone`, and has no gradient then.
    """
    grad, x, values, numbers, result = inputs
    places: Any = places_of(x.shape, [numbers], attrs)
    kept, taken = x == result, _met(values, numbers) == result[places]
    counts = kept.astype(np.float32)
    np.add.at(counts, places, taken.astype(np.float32))
    share = np.divide(grad, counts, out=np.zeros_like(grad), where=counts != 0)
    if attrs["of_values"]:
        whole = np.zeros_like(values)
        whole[tuple(slice(extent) for extent in numbers.shape)] = share[places] * taken
        return whole
    if attrs.get("alone"):
        kept[places] = False
    return share * kept


extreme_shares = Op(
    "scatter_extreme_grad",
    lambda inputs, attrs: inputs[2 if attrs["of_values"] else 1],
    _shares,
    flops=lambda inputs, out, attrs: 3 * size(inputs[0]),
    kind="reduce",
    pinned=(3,),
)


def _side_gradient(of_values: bool) -> GradientRule:
    def rule(b: Builder, node: Node, grad: int) -> int:
        attrs = {**node.attributes, "of_values": of_values}
        return b.emit(extreme_shares, grad, *node.inputs, node.id, attrs=attrs)

    return rule


scatter_extreme = replace(
    scatter,
    name="scatter_extreme",
    forward=_extreme,
    gradients=(_side_gradient(False), _side_gradient(True), None),
    flops=lambda inputs, out, attrs: size(inputs[1]),
    kind="reduce",
)
"""The largest of the first input and the second at places as of `gather`, or the `smallest`.

`alone`: what the first holds at those places does not count.
"""
