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
