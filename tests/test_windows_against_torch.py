"""Convolutions and pools of every kind against torch, on random shapes and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policysearch.graph import Attrs
from tests.torch_cases import Case, assert_as_torch, normal, one

pytestmark = pytest.mark.torch

KINDS: dict[str, Attrs] = {
    "plain": {"stride": 2, "padding": 1},
    "pairs of one number": {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": 1},
    "unequal strides": {"stride": (2, 1)},
    "unequal padding": {"padding": (0, 2)},
    "dilated": {"dilation": 2, "padding": 2},
    "unequally dilated": {"dilation": (1, 3), "stride": (3, 1), "padding": (1, 3)},
    "grouped": {"groups": 2, "padding": 1},
    "depthwise": {"groups": 4, "padding": 1, "stride": 2},
    "all": {"groups": 2, "dilation": (2, 1), "stride": (1, 2), "padding": (2, 1)},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [(3, 3), (1, 1), (2, 3)])
def test_convolutions(kind: str, window: tuple[int, int]) -> None:
    attrs = KINDS[kind]
    for seed in range(3):
        rng = np.random.default_rng(seed)
        n, high, wide = (int(x) for x in rng.integers((1, 7, 8), (4, 12, 12)))
        image = normal(rng, n, 4, high, wide)
        weight = normal(rng, 8, 4 // attrs.get("groups", 1), *window)

        def expected(t: Any, x: Any, w: Any) -> Any:
            return t.nn.functional.conv2d(x, w, **attrs)

        assert_as_torch(Case((image, weight), one("conv2d", attrs), expected), seed)


@pytest.mark.parametrize("kind", KINDS)
def test_transposed_convolutions(kind: str) -> None:
    attrs = dict(KINDS[kind])
    for seed, more in enumerate((0, 0, (1, 0))):
        if more and max(np.max(attrs.get(k, 1)) for k in ("stride", "dilation")) == 1:
            continue  # torch wants it smaller than the stride or the dilation
        attrs["output_padding"] = more if np.min(attrs.get("stride", 1)) > 1 else 0
        rng = np.random.default_rng(seed)
        n, high, wide = (int(x) for x in rng.integers((1, 3, 4), (4, 7, 7)))
        image = normal(rng, n, 4, high, wide)
        weight = normal(rng, 4, 6 // attrs.get("groups", 1) if kind != "depthwise" else 2, 3, 2)

        def expected(t: Any, x: Any, w: Any) -> Any:
            return t.nn.functional.conv_transpose2d(x, w, **attrs)

        assert_as_torch(Case((image, weight), one("conv_transpose2d", attrs), expected), seed)


def test_a_convolution_along_one_axis_is_one_of_images_one_row_high() -> None:
    rng = np.random.default_rng(0)
    image, weight = normal(rng, 3, 4, 1, 11), normal(rng, 6, 4, 1, 3)
    attrs = {"stride": (1, 2), "padding": (0, 1)}

    def expected(t: Any, x: Any, w: Any) -> Any:
        return t.nn.functional.conv1d(x[:, :, 0], w[:, :, 0], None, 2, 1)[:, :, None]

    assert_as_torch(Case((image, weight), one("conv2d", attrs), expected), 0)


POOLS: dict[str, Attrs] = {
    "of windows": {"window": 2},
    "overlapping": {"window": 3, "stride": 2},
    "a stem": {"window": 3, "stride": 2, "padding": 1},
    "of one size": {"window": 3, "stride": 1, "padding": 1},
    "unequal": {"window": (2, 3), "stride": (1, 2), "padding": (0, 1)},
    "rounded up": {"window": 3, "stride": 2, "ceil_mode": True},
    "rounded up with a border": {"window": 2, "stride": 2, "padding": 1, "ceil_mode": True},
    "with gaps": {"window": 2, "stride": 3},
}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("name", ["max_pool", "average_pool", "average_pool of values alone"])
def test_pools(name: str, kind: str) -> None:
    attrs = dict(POOLS[kind])
    if name.endswith("alone"):
        attrs["count_include_pad"] = False
    names = {"window": "kernel_size"}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        image = normal(rng, 2, 3, *(int(x) for x in rng.integers(5, 11, 2)))

        def expected(t: Any, x: Any) -> Any:
            pool = t.nn.functional.max_pool2d if name == "max_pool" else t.nn.functional.avg_pool2d
            return pool(x, **{names.get(key, key): value for key, value in attrs.items()})

        assert_as_torch(Case((image,), one(name.split()[0], attrs), expected), seed)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (4, 6)])
def test_an_adaptive_pool_to_a_size_that_divides_is_one_of_windows(size: tuple[int, int]) -> None:
    attrs = {"window": (4 // size[0], 6 // size[1])}
    image = normal(np.random.default_rng(0), 2, 3, 4, 6)

    def expected(t: Any, x: Any) -> Any:
        return t.nn.functional.adaptive_avg_pool2d(x, size)

    assert_as_torch(Case((image,), one("average_pool", attrs), expected), 0)


def test_equal_values_in_overlapping_windows_share_gradients_as_in_torch() -> None:
    """Values of a coarse format tie often; the first of a window has its gradient."""
    image = np.random.default_rng(0).integers(0, 2, (3, 4, 7, 7)).astype(np.float32)
    attrs = {"window": 3, "stride": 2, "padding": 1}

    def expected(t: Any, x: Any) -> Any:
        return t.nn.functional.max_pool2d(x, 3, 2, 1)

    assert_as_torch(Case((image,), one("max_pool", attrs), expected), 0)
