"""Elementwise ops in the C extension `policysearch._elementwise`: one pass, the bits of numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from policysearch.graph import Attrs, Kernel, Shape
from policysearch.ops.stored import bind_stored

try:
    import policysearch._elementwise as _elementwise
except ImportError:
    _elementwise = None


def in_one_pass(name: str) -> Callable[[Sequence[Shape], Shape, Attrs], Kernel | None]:
    """Return the `compiled` of the op that the extension has under `name`.

    Matrices and images are served, whole or some rows of them; vectors are left to numpy.
    """

    def compiled(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        function = getattr(_elementwise, name, None)
        return Kernel(bind_stored(function)) if function and len(out) in (2, 4) else None

    return compiled
