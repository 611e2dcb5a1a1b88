"""Values as they lie in memory, seen under other extents and strides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder


def _places(attrs: Attrs) -> NDArray[np.int64]:
    """Return the place in memory of every value that is seen."""
    places = np.full((), attrs["offset"], np.int64)
    for extent, stride in zip(attrs["shape"], attrs["strides"], strict=True):
        places = places[..., np.newaxis] + np.arange(extent, dtype=np.int64) * stride
    return places


def _seen(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    flat = inputs[0].reshape(-1)
    return flat[_places(attrs).reshape(-1)].reshape(tuple(attrs["shape"]))


def _strided_sums(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    total = np.zeros(size(attrs["of"]), np.float32, like=inputs[0])
    np.add.at(total, _places(attrs).reshape(-1), inputs[0].reshape(-1))
    return total.reshape(tuple(attrs["of"]))


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs["shape"])


strided_grad: Op = Op(
    "as_strided_grad",
    lambda inputs, attrs: tuple(attrs["of"]),
    _strided_sums,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
)


def _back(b: Builder, node: Node, grad: int) -> int:
    return b.emit(strided_grad, grad, attrs={**node.attributes, "of": b.shape(node.inputs[0])})


def _windows(rng: np.random.Generator) -> Example:
    x = rng.standard_normal((2, 6, 3)).astype(np.float32)
    return Example((x,), {"shape": (2, 2, 3, 3), "strides": (18, 6, 3, 1), "offset": 1})


strided: Op = Op(
    "as_strided",
    _shape,
    _seen,
    gradients=(_back,),
    flops=lambda inputs, out, attrs: 0,
    example=_windows,
    kind="move",
    keeps_format=True,
)
"""The values of a contiguous input under `shape` and `strides`, from the one at `offset` on.

The gradient of a value that is seen more than once is the sum of theirs, in float32.
"""
