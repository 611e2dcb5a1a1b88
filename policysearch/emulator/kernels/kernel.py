"""What a kernel is: the values of a node computed in C, with the bits of the op's numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from policysearch.graph import Attrs, Bind, FloatArray, Shape, Work, no_work
from policysearch.layout import stored_view


@dataclass(frozen=True)
class Kernel:
    """How the values of a node are computed: `bind` and `work` as an `Op` has them.

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


def bind_stored(function: Callable[..., object], *numbers: int) -> Bind:
    """Return the `bind` of a kernel: `function` of the stored inputs and output, and `numbers`.

    The attribute "grid" of a kernel that rounds comes last.
    """

    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        grid = [attrs["grid"]] if "grid" in attrs else []
        return partial(function, *map(stored_view, (*inputs, out)), *numbers, *grid)

    return bind
