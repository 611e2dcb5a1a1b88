"""How tensors lie in memory.

Image tensors [batch, channels, height, width] are stored as (height, channels, width, batch) and
matrices [batch, features] as (features, batch): with the batch last, BLAS reads both operands of
the forward product along their rows. Every other tensor is stored in the order of its axes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
Shape = tuple[int, ...]

LINE = 16
"""Elements in a cache line of 64 bytes."""


def stored(flat: FloatArray, shape: Shape) -> FloatArray:
    """Return the logical view with `shape` of a flat buffer in storage order."""
    if len(shape) == 4:
        n, c, h, w = shape
        return flat.reshape(h, c, w, n).transpose(3, 1, 0, 2)
    return flat.reshape(shape[::-1]).T if len(shape) == 2 else flat.reshape(shape)


def stored_shape(shape: Shape) -> Shape:
    """Return the shape of the stored array of a tensor of logical `shape`."""
    if len(shape) == 4:
        n, c, h, w = shape
        return (h, c, w, n)
    return shape[::-1] if len(shape) == 2 else shape


def leading_axis(shape: Shape) -> int:
    """Return the logical axis that is stored first."""
    return {2: 1, 4: 2}.get(len(shape), 0)


def aligned(elements: int) -> FloatArray:
    """Return a zeroed float32 array of `elements` that starts on a cache line."""
    raw = np.zeros(elements + LINE, np.float32)
    start = (-raw.ctypes.data // 4) % LINE
    return raw[start : start + elements]


def stored_view(array: FloatArray) -> FloatArray:
    """Return the contiguous array that `array`, or some rows of it, is the logical view of.

    An image [n, c, h, w] is stored (h, c, w, n), a weight [o, c, kh, kw] likewise
    (kh, c, kw, o), a matrix with its axes exchanged, every other array as it is.
    """
    if array.ndim == 4:
        return array.transpose(2, 1, 3, 0)
    return array.T if array.ndim == 2 else array


def logical_view(array: FloatArray) -> FloatArray:
    """Return the logical view of a stored array (see `stored_view`)."""
    if array.ndim == 4:
        return array.transpose(3, 1, 0, 2)
    return array.T if array.ndim == 2 else array


def stored_flat(array: FloatArray) -> FloatArray:
    """Return the array's numbers in the order in which they are stored, [size]."""
    return stored_view(array).reshape(-1)


def in_storage_order(array: FloatArray) -> FloatArray:
    """Return the array, or a copy of it where it lies otherwise, in storage order."""
    flat = stored_flat(array)
    return array if np.shares_memory(flat, array) else stored(flat, array.shape)


def last_axis_view(array: FloatArray) -> FloatArray:
    """Return the view [length, ...] with the last axis first, the others as they are stored."""
    return np.moveaxis(stored_view(array), stored_last_axis(array.ndim), 0)


def in_c_order(array: FloatArray) -> FloatArray:
    """Return the array, or a copy of it, in the order of its axes."""
    return np.ascontiguousarray(array, like=array)


def last_axis_first(array: FloatArray) -> FloatArray:
    """Return `last_axis_view` in C order: numpy then works on all rows of an array at once."""
    return in_c_order(last_axis_view(array))


def last_axis_last(array: FloatArray) -> FloatArray:
    """Return the logical view of an array [length, ...] as `last_axis_first` returns it."""
    return logical_view(np.moveaxis(array, 0, stored_last_axis(array.ndim)))


def around_last_axis(shape: Shape) -> tuple[int, int, int]:
    """Return how a stored array lies around its last axis: [outer, length, inner]."""
    axis, lengths = stored_last_axis(len(shape)), stored_shape(shape)
    return math.prod(lengths[:axis]), lengths[axis], math.prod(lengths[axis + 1 :])


def stored_last_axis(ndim: int) -> int:
    """Return which axis of the stored array is the last of the logical one."""
    return {2: 0, 4: 2}.get(ndim, ndim - 1)


def empty(shape: Shape, like: FloatArray | None = None) -> FloatArray:
    """Return a new logical array of zeros in storage order: on a cache line, or where `like` is."""
    if like is None or isinstance(like, np.ndarray):
        return stored(aligned(math.prod(shape)), shape)
    return stored(np.zeros(math.prod(shape), np.float32, like=like), shape)
