"""Copies in another order of the axes in C, against numpy's own."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from policysearch.emulator.kernels.registry import offered
from policysearch.graph import Attrs, Op, Shape
from policysearch.layout import empty
from policysearch.ops.shape import reshape, transpose

SHAPES: tuple[Shape, ...] = (
    *((33, 18), (1, 7), (3, 5, 7), (1, 4, 1), (9, 2, 3, 17), (1, 3, 1, 5), (2, 3, 4, 5, 6)),
)
HEADS: tuple[tuple[Shape, Attrs], ...] = (
    ((96, 20), {"split": (3, 32, 4, 5), "axes": (0, 2, 1, 3), "shape": (12, 32, 5)}),
    ((12, 32, 5), {"split": (3, 4, 32, 5), "axes": (0, 2, 1, 3), "shape": (96, 20)}),
    ((5, 2, 6, 7), {"axes": (0, 2, 1, 3), "shape": (30, 14)}),
)
RESHAPES: tuple[tuple[Shape, Shape], ...] = (
    *(((96, 20), (3, 640)), ((3, 640), (96, 20)), ((2, 3, 4, 5), (2, 60)), ((2, 60), (2, 3, 4, 5))),
    *(((6, 4), (3, 2, 4)), ((3, 2, 4), (6, 4)), ((6, 4), (24,)), ((24,), (6, 4))),
)


def _check(op: Op, shape: Shape, attrs: Attrs) -> bool:
    """Return whether the extension serves this; its result is numpy's of arrays in any order."""
    x = empty(shape)
    x[...] = np.arange(x.size).reshape(shape)
    seen = np.ascontiguousarray(x)
    if op is transpose:
        seen = seen.reshape(attrs.get("split", shape)).transpose(attrs["axes"])
    expected = np.ascontiguousarray(seen).reshape(op.shape([shape], attrs))
    kernel = offered("C_KERNELS", op, [shape], expected.shape, attrs)
    if kernel is not None:
        out = empty(expected.shape)
        kernel.bind([x], out, attrs, np.empty(0, np.float32))()
        assert np.array_equal(out, expected)
    return kernel is not None


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_order_of_the_axes(shape: Shape) -> None:
    pytest.importorskip("policysearch.emulator.kernels._permute")
    orders = list(itertools.permutations(range(len(shape))))
    assert sum(_check(transpose, shape, {"axes": axes}) for axes in orders) > 0


@pytest.mark.parametrize(("shape", "attrs"), HEADS, ids=str)
def test_heads(shape: Shape, attrs: Attrs) -> None:
    pytest.importorskip("policysearch.emulator.kernels._permute")
    assert _check(transpose, shape, attrs)


@pytest.mark.parametrize(("shape", "to"), RESHAPES, ids=str)
def test_reshapes_into_another_order_of_storage(shape: Shape, to: Shape) -> None:
    pytest.importorskip("policysearch.emulator.kernels._permute")
    assert _check(reshape, shape, {"shape": to})


def test_axes_without_a_common_split_are_left_to_numpy() -> None:
    assert not _check(reshape, (5, 7), {"shape": (7, 5)})


def test_the_extension_refuses_axes_that_do_not_fit() -> None:
    permute = pytest.importorskip("policysearch.emulator.kernels._permute").permute
    x, out = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    permute(x, out, np.array([[3, 4, 1], [4, 1, 3]], np.int64).tobytes())
    assert np.array_equal(out.reshape(4, 3), x.reshape(3, 4).T)
    for axes in (
        [[3, 4, 1], [4, 1, 4]],
        [[3, 4, 1], [5, 1, 3]],
        [[3, 4, 2], [4, 1, 3]],
        [[3, 4, 1], [4, 2, 3]],
        [[3, -4, 1], [4, 1, 3]],
        [[12, 1, 1]],
        [[1, 1, 1]] * 9,
    ):
        with pytest.raises(ValueError, match="expected axes of these arrays"):
            permute(x, out, np.array(axes, np.int64).tobytes())
    with pytest.raises(ValueError, match="of one size"):
        permute(x, out[:6], np.array([[3, 4, 1], [4, 1, 3]], np.int64).tobytes())
    with pytest.raises(TypeError):
        permute(x, out)
