"""The momentum update in C against the same operations in numpy."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.emulator.kernels import sgd
from policysearch.formats import FORMATS
from policysearch.graph import FloatArray
from policysearch.rounding.grid import SPAN
from policysearch.rounding.rounder import quantise, rounder

pytestmark = pytest.mark.skipif(
    not sgd.compiled_available(), reason="the extension _sgd is not built"
)


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "bfloat16", "tfloat32", None])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("size", [1, 5001, 2 * SPAN + 77])
def test_momentum_update(size: int, momentum: float, name: str | None) -> None:
    rng = np.random.default_rng(size)
    param, velocity, grad = (rng.standard_normal(size).astype(np.float32) for _ in range(3))
    grad *= np.exp2(rng.uniform(-40, 10, size)).astype(np.float32)
    grad[::7], velocity[::3] = -0.0, 0.0
    given, rate = grad.copy(), np.full(1, 0.1, np.float32)
    rounded_grad = grad if name is None else quantise(grad, FORMATS[name])
    new_velocity: FloatArray = velocity * np.float32(momentum) + rounded_grad
    new_param: FloatArray = param - new_velocity * rate
    grid = None if name is None else rounder(FORMATS[name], fast="c").kernel_grid
    sgd.bind_sgd(param, velocity, grad, momentum, rate, grid)()
    assert np.array_equal(velocity.view(np.uint32), new_velocity.view(np.uint32))
    assert np.array_equal(param.view(np.uint32), new_param.view(np.uint32))
    assert np.array_equal(grad, given)


def test_arrays_that_do_not_fit_are_refused() -> None:
    a, short, rate = np.zeros(8, np.float32), np.zeros(7, np.float32), np.ones(1, np.float32)
    with pytest.raises(ValueError, match="contiguous float32 buffers of one size"):
        sgd.bind_sgd(a, a.copy(), short, 0.9, rate, None)()
    drawn = rounder(FORMATS["float16"], fast="c").packed
    with pytest.raises(ValueError, match="expected a packed grid"):
        sgd.bind_sgd(a, a.copy(), a.copy(), 0.9, rate, drawn[:-1])()
