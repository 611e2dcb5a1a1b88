"""Kernels that take arrays as they lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from policysearch.graph import Attrs, Bind, FloatArray
from policysearch.layout import stored_view


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
