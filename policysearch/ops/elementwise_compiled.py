"""Elementwise ops in the C extension `policysearch._elementwise`: one pass, the bits of numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from policysearch.graph import Attrs, Bind, FloatArray, Kernel, Shape

try:
    import policysearch._elementwise as _elementwise
except ImportError:
    _elementwise = None


def _stored(array: FloatArray) -> FloatArray:
    """Return the contiguous array, in storage order, that `array` or a block of it is a view of."""
    return array.transpose(2, 1, 3, 0) if array.ndim == 4 else array.T


def _bind_compiled(function: Callable[..., object]) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        return partial(function, *map(_stored, (*inputs, out)))

    return bind


def in_one_pass(name: str) -> Callable[[Sequence[Shape], Shape, Attrs], Kernel | None]:
    """Return the `compiled` of the op that the extension has under `name`.

    Matrices and images are served, whole or some rows of them; vectors are left to numpy.
    """

    def compiled(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        function = getattr(_elementwise, name, None)
        return Kernel(_bind_compiled(function)) if function and len(out) in (2, 4) else None

    return compiled
