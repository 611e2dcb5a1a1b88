"""Elementwise ops in the C extension `_elementwise`: one pass, the bits of numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from policysearch.emulator.kernels.kernel import Kernel, Offer, bind_stored
from policysearch.graph import Attrs, Shape

try:
    import policysearch.emulator.kernels._elementwise as _elementwise
except ImportError:
    _elementwise = None


def in_one_pass(name: str, *, rounds: bool = False) -> Offer:
    """Return the offer of the op that the extension has under `name`.

    Matrices and images are served, whole or some rows of them; vectors are left to numpy. `rounds`:
    the extension can round the output as well.
    """

    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        function = getattr(_elementwise, name, None)
        broadcast = name != "bias" and any(shape != out for shape in inputs)
        if not function or len(out) not in (2, 4) or broadcast:
            return None
        return Kernel(bind_stored(function), rounds=rounds)

    return offer


KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "add": in_one_pass("add", rounds=True),
        "bias": in_one_pass("bias", rounds=True),
        "relu": in_one_pass("relu"),
        "relu_grad": in_one_pass("relu_grad"),
    }
)
"""By the name of the op."""
