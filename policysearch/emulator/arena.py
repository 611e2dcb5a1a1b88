"""The memory of values that are no sources, for steps that take turns in it."""

from __future__ import annotations

import numpy as np

from policysearch.graph import FloatArray
from policysearch.layout import aligned


class Arena:
    """One stretch of float32 memory that every step made with it begins anew.

    The values of a step are there until another one runs. A step that needs more than there is
    gets a new stretch, the old one stays with those that have it: the largest comes first.
    """

    def __init__(self) -> None:
        self._array: FloatArray = np.empty(0, np.float32)

    @property
    def bytes(self) -> int:
        """Bytes of the stretch that the next step of its size or a smaller one would get."""
        return self._array.nbytes

    def stretch(self, elements: int) -> FloatArray:
        """Return the first `elements` float32 numbers, from a cache line on."""
        if len(self._array) < elements:
            del self._array  # before the new one is there
            self._array = aligned(elements)
        return self._array[:elements]
