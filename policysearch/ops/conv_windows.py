"""Convolutions with groups, dilation, and strides and padding that differ by axis.

As one matrix product per group over all window positions: the window's taps are copied side by
side first. `ops/conv.py` has the faster way of plain convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.layout import stored_view
from policysearch.ops.conv_geometry import Windows, windows

Run = Callable[[], object]


class _Scratch:
    """Arrays of one run, cut from `work` in the order that they are asked for."""

    def __init__(self, work: FloatArray) -> None:
        self._work, self._used = work, 0

    def array(self, shape: Shape) -> FloatArray:
        start, self._used = self._used, self._used + size(shape)
        return self._work[start : self._used].reshape(shape)


def _taps(
    w: Windows, framed: FloatArray, columns: FloatArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Return, per place in the window, the pixels there and their part of the columns, alike."""
    (high, wide), groups = w.out, w.groups
    found = []
    for i in range(w.window[0]):
        for j in range(w.window[1]):
            top, left = i * w.dilation[0], j * w.dilation[1]
            pixels = framed[
                top : top + (high - 1) * w.stride[0] + 1 : w.stride[0],
                :,
                left : left + (wide - 1) * w.stride[1] + 1 : w.stride[1],
            ].reshape(high, groups, -1, wide, w.batch)
            found.append((pixels.transpose(1, 2, 0, 3, 4), columns[:, :, i, j]))
    return found


def _interior(w: Windows, framed: FloatArray) -> FloatArray:
    (top, left), (high, wide) = w.padding, w.image
    return framed[top : top + high, :, left : left + wide]


def _grouped(w: Windows, stored: FloatArray) -> FloatArray:
    """Return the view [groups, channels, rows, columns, batch] of a stored result."""
    high, wide = w.out
    return stored.reshape(high, w.groups, -1, wide, w.batch).transpose(1, 2, 0, 3, 4)


def _fill_columns(w: Windows, image: FloatArray, scratch: _Scratch) -> tuple[FloatArray, Run]:
    framed, columns = scratch.array(w.framed), scratch.array(w.columns)
    taps, inner, source = _taps(w, framed, columns), _interior(w, framed), stored_view(image)

    def fill() -> None:
        framed.fill(0.0)
        np.copyto(inner, source)
        for pixels, column in taps:
            np.copyto(column, pixels)

    return columns.reshape(w.groups, w.weights[2], -1), fill


def _weights(w: Windows, weight: FloatArray, scratch: _Scratch) -> tuple[FloatArray, Run]:
    matrix = scratch.array(w.weights)
    ordered = matrix.reshape(weight.shape)
    return matrix, lambda: np.copyto(ordered, weight)


def bind_conv(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
    """Return the function that convolves (image, weight) into `out`."""
    image, weight = inputs
    w, scratch = windows(image.shape, weight.shape, attrs), _Scratch(work)
    product = attrs.get("product", np.matmul)
    columns, fill = _fill_columns(w, image, scratch)
    matrix, order = _weights(w, weight, scratch)
    result, target = scratch.array(w.results), _grouped(w, stored_view(out))
    flat = result.reshape(w.groups, w.weights[1], -1)

    def run() -> None:
        fill()
        order()
        product(matrix, columns, out=flat)
        np.copyto(target, result)

    return run


def bind_wgrad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    """Return the function that computes the gradient of the weights from (gradient, image)."""
    grad, image = inputs
    w, scratch = windows(image.shape, out.shape, attrs), _Scratch(work)
    product = attrs.get("product", np.matmul)
    columns, fill = _fill_columns(w, image, scratch)
    rows, source = scratch.array(w.results), _grouped(w, stored_view(grad))
    flat, matrix = rows.reshape(w.groups, w.weights[1], -1), scratch.array(w.weights)
    ordered = matrix.reshape(out.shape)

    def run() -> None:
        fill()
        np.copyto(rows, source)
        product(flat, columns.transpose(0, 2, 1), out=matrix)
        np.copyto(out, ordered)

    return run


def bind_dgrad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    """Return the function that computes the gradient of the image from (gradient, weight)."""
    grad, weight = inputs
    w, scratch = windows(out.shape, weight.shape, attrs), _Scratch(work)
    product = attrs.get("product", np.matmul)
    framed, columns = scratch.array(w.framed), scratch.array(w.columns)
    taps, inner, target = _taps(w, framed, columns), _interior(w, framed), stored_view(out)
    matrix, order = _weights(w, weight, scratch)
    rows, source = scratch.array(w.results), _grouped(w, stored_view(grad))
    flat = rows.reshape(w.groups, w.weights[1], -1)
    spread = columns.reshape(w.groups, w.weights[2], -1)

    def run() -> None:
        order()
        np.copyto(rows, source)
        product(matrix.transpose(0, 2, 1), flat, out=spread)
        framed.fill(0.0)
        for pixels, column in taps:
            np.add(pixels, column, out=pixels)
        np.copyto(target, inner)

    return run


def work_of(w: Windows) -> int:
    """Return the elements of scratch that any direction needs."""
    return sum(map(size, (w.framed, w.columns, w.results, w.weights)))
