"""GELU in its erf form beside scipy's error function in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import ndtr

from policysearch.graph import FloatArray
from policysearch.ops.gelu import NORMAL, SLOPE, OddRatio, gelu, gelu_grad

Exact = Callable[[FloatArray], npt.NDArray[np.float64]]
GRID = np.linspace(-8.0, 8.0, 800_001).astype(np.float32)


def _normal(x: FloatArray) -> npt.NDArray[np.float64]:
    return np.asarray(ndtr(x.astype(np.float64)) - 0.5)


def _slope(x: FloatArray) -> npt.NDArray[np.float64]:
    wide = x.astype(np.float64)
    density = np.exp(-0.5 * wide**2) / np.sqrt(2.0 * np.pi)
    return np.asarray(_normal(x) + wide * density)


def _of(ratio: OddRatio, x: FloatArray) -> FloatArray:
    return ratio(x)


@pytest.mark.parametrize(
    ("ratio", "exact", "most"), [(NORMAL, _normal, 1.8e-7), (SLOPE, _slope, 2.5e-7)]
)
def test_ratios_are_as_near_as_they_say(ratio: OddRatio, exact: Exact, most: float) -> None:
    y = _of(ratio, GRID)
    error = np.abs(y - exact(GRID))
    assert error.max() <= most
    assert np.array_equal(y, -_of(ratio, -GRID))
    far = np.array([ratio.farthest, 7.0, 1e4, 3e38, np.inf], np.float32)
    assert np.array_equal(_of(ratio, far), np.full(5, 0.5, np.float32))
    assert ratio.below[0] == 1.0
    assert np.isnan(_of(ratio, np.array([np.nan], np.float32))).all()


def test_far_from_zero_values_pass_or_vanish() -> None:
    x = np.array([-3e38, -1e4, -7.0, -0.0, 0.0, 7.0, 1e4, 3e38], np.float32)
    y, dx = (
        op.forward(inputs, {"form": "erf"})
        for op, inputs in ((gelu, [x]), (gelu_grad, [np.full_like(x, 2.0), x]))
    )
    assert np.array_equal(y, np.maximum(x, 0.0))
    assert np.array_equal(dx, [0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0])
