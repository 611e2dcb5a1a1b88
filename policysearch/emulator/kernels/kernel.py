"""What a kernel is: the values of a node computed faster, with the bits of the op's forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, FloatArray, Op, Shape
from policysearch.layout import stored_view

Numbers = TypeVar("Numbers", bound=NDArray[Any])
Run = Callable[[], object]
Bind = Callable[[Sequence[FloatArray], FloatArray, Attrs, FloatArray], Run]
"""Of inputs, output, attributes and scratch, which stay where they are for the life of a plan: the
call that sets the output."""

Work = Callable[[Sequence[Shape], Shape, Attrs], int]


def no_work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    """Return 0: the kernel needs no scratch."""
    return 0


@dataclass(frozen=True)
class Kernel:
    """How the values of a node are computed; `work` gives the elements of scratch for `bind`.

    `rounds`: given the attribute "grid" (`Rounder.kernel_grid`) it rounds its output as well.
    `beside`: an op of the first of its inputs whose values it computes as well, into the attribute
    "beside" where that is given.
    """

    bind: Bind
    work: Work = no_work
    rounds: bool = False
    beside: str | None = None


Offer = Callable[[Sequence[Shape], Shape, Attrs], Kernel | None]
"""Returns the kernel for inputs and an output of these shapes; None where there is none."""


def forward_kernel(op: Op) -> Kernel:
    """Return how any op can be run: by its forward, in new arrays, copied to the output."""

    def bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
        return lambda: np.copyto(out, op.forward(inputs, attrs))

    return Kernel(bind)


def bind_stored(function: Callable[..., object], *numbers: int) -> Bind:
    """Return the `bind` of a kernel: `function` of the stored inputs and output, and `numbers`.

    The attribute "grid" of a kernel that rounds comes last.
    """

    def bind(inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray) -> Run:
        grid = [attrs["grid"]] if "grid" in attrs else []
        return partial(function, *map(stored_view, (*inputs, out)), *numbers, *grid)

    return bind


def like(array: Numbers, work: NDArray[Any], part: int = 0) -> Numbers:
    """Return the `part`-th stretch of `work` that has the shape and strides of `array`."""
    stretch = work[part * array.size :]
    return np.ndarray(array.shape, array.dtype, stretch, strides=array.strides)  # type: ignore[return-value]
