"""Momentum SGD and the rounding of its gradient in the C extension `_sgd`: one pass."""

from __future__ import annotations

from policysearch.emulator.kernels.kernel import Run
from policysearch.graph import FloatArray
from policysearch.rounding.extension import extension

_sgd = extension("emulator.kernels._sgd")


def compiled_available() -> bool:
    """Whether the extension `_sgd` was built and can be imported."""
    return _sgd is not None


def bind_sgd(
    param: FloatArray,
    velocity: FloatArray,
    grad: FloatArray,
    momentum: float,
    rate: FloatArray,
    grid: bytes | None,
) -> Run:
    """Return the call that updates `param` and `velocity`, fixed for good.

    velocity = momentum * velocity + rounded grad; param = param - rate * velocity, every
    operation rounded to float32 on its own; `grad` itself is left alone. All are 1-D, contiguous
    and of one size; `rate` has one element. `grid` (`Rounder.kernel_grid`) rounds the gradient,
    None leaves it as it is.
    """
    update = _sgd.sgd
    return lambda: update(param, velocity, grad, float(rate[0]), momentum, grid)
