"""Largest values of windows that tile an image where its extents do not divide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.resample import windows_of

Cut = tuple[int | slice, ...]
ALL = (slice(None), slice(None))
"""Every example and channel."""


def _cells(image: Shape, sizes: Shape) -> Iterator[tuple[Cut, Cut]]:
    """Yield where each window's value goes, and what it reads of [batch, channels, ...]."""
    along = [windows_of(n, count) for n, count in zip(image[2:], sizes, strict=True)]
    for place in np.ndindex(*sizes):
        own = (windows[i] for windows, i in zip(along, place, strict=True))
        yield (*ALL, *place), (*ALL, *(slice(window.start, window.stop) for window in own))


def _rows(image: FloatArray, cut: Cut) -> FloatArray:
    """Return a window as [batch, channels, values in row order]."""
    return image[cut].reshape(*image.shape[:2], -1)


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*inputs[0][:2], *attrs["sizes"])


def _forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (image,) = inputs
    result = np.empty(_shape([image.shape], attrs), np.float32, like=image)
    for place, cut in _cells(image.shape, attrs["sizes"]):
        result[place] = _rows(image, cut).max(-1)
    return result


def _places(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (image,) = inputs
    numbers = np.arange(size(image.shape[2:]), like=image).reshape(image.shape[2:])
    result = np.empty(_shape([image.shape], attrs), np.float32, like=image)
    for place, cut in _cells(image.shape, attrs["sizes"]):
        result[place] = numbers[cut[2:]].ravel()[_rows(image, cut).argmax(-1)]
    return result


def _backward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The first of equal values of a window has its gradient, as in torch."""
    grad, image = inputs
    numbers = _places([image], attrs).astype(np.intp).reshape(*image.shape[:2], -1)
    rows = grad.reshape(numbers.shape)
    total = np.zeros((*image.shape[:2], size(image.shape[2:])), np.float32, like=grad)
    for n, c in product(range(image.shape[0]), range(image.shape[1])):
        np.add.at(total[n, c], numbers[n, c], rows[n, c])
    return total.reshape(image.shape)


adaptive_max_grad = Op(
    "adaptive_max_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_backward,
    flops=lambda inputs, out, attrs: 2 * size(out),
    pointwise=False,
)


def _gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(adaptive_max_grad, grad, node.inputs[0], attrs=node.attributes)


def _distinct(rng: np.random.Generator) -> Example:
    """Values 0.1 apart, so that none overtakes another under a small difference."""
    order = rng.permutation(2 * 3 * 5 * 4).reshape(2, 3, 5, 4)
    return Example(((order * 0.1).astype(np.float32),), {"sizes": (3, 3)})


adaptive_max = Op(
    "adaptive_max",
    _shape,
    _forward,
    gradients=(_gradient,),
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=_distinct,
    keeps_format=True,
    pointwise=False,
)
"""The largest value of each of as many windows along the last axes as `sizes` say."""

adaptive_max_places = Op(
    "adaptive_max_places",
    _shape,
    _places,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=_distinct,
    pointwise=False,
)
"""Which value of its image each of these is, counted in row order."""
