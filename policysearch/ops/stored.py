"""Arrays as they lie in memory, which is how the C extensions take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from policysearch.graph import Attrs, Bind, FloatArray


def stored_view(array: FloatArray) -> FloatArray:
    """Return the contiguous array that `array`, or a block of it, is the logical view of.

    An image [n, c, h, w] is stored (h, c, w, n), a weight [o, c, kh, kw] likewise
    (kh, c, kw, o), a matrix with its axes exchanged, a vector as it is.
    """
    return array.transpose(2, 1, 3, 0) if array.ndim == 4 else array.T


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
