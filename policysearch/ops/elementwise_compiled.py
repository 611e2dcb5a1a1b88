"""Elementwise ops in the C extension `_elementwise`: one pass, the bits of numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policysearch.graph import Attrs, Kernel, Shape
from policysearch.ops.stored import bind_stored

try:
    import policysearch.emulator.kernels._elementwise as _elementwise
except ImportError:
    _elementwise = None


def in_one_pass(
    name: str, *, rounds: bool = False
) -> Callable[[Sequence[Shape], Shape, Attrs], Kernel | None]:
    """Return the `compiled` of the op that the extension has under `name`.

    Matrices and images are served, whole or some rows of them; vectors are left to numpy. `rounds`:
    the extension can round the output as well.
    """

    def compiled(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        function = getattr(_elementwise, name, None)
        if not function or len(out) not in (2, 4):
            return None
        return Kernel(bind_stored(function), rounds=rounds)

    return compiled
