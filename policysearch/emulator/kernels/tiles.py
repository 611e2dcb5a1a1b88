"""What kernels that work on tiles of rows along the last axis share with `_tiles.h`."""

from __future__ import annotations

import math

from policysearch.graph import Shape
from policysearch.layout import stored_last_axis, stored_shape

TILE, LEAST = 4096, 16
"""Of `_tiles.h`: floats of a tile of short rows, rows of a tile of long ones."""


def extents(shape: Shape) -> tuple[int, int, int]:
    """Return how the stored array lies around the last axis: [outer, length, inner]."""
    axis, lengths = stored_last_axis(len(shape)), stored_shape(shape)
    return math.prod(lengths[:axis]), lengths[axis], math.prod(lengths[axis + 1 :])


def tile_rows(length: int) -> int:
    """Return the most rows of `length` that a tile has."""
    return max(LEAST, TILE // length // LEAST * LEAST)
