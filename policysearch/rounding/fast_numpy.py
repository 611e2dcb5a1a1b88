"""Spans rounded in numpy in as few passes as it takes, over work buffers that stay in cache.

What these short cuts do not serve, and spans that hold a number near the largest or beyond it, are
left to the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from policysearch.rounding.grid import FIRSTS, KEY_SPAN, MODES, SPAN, FloatArray, Grid, UintArray
from policysearch.rounding.nearest import bind_narrow, bind_wide
from policysearch.rounding.reference import round_span
from policysearch.rounding.stochastic import Drawing, draw_table

_LINE = 64  # bytes: float arithmetic on arrays that start elsewhere takes nearly twice as long
ROW = 8192  # as many as numpy takes at a time
_STAGGER = 1088  # bytes between scratch buffers, so that they do not alias in the cache


def _rows(count: int, size: int, first: int = 0) -> list[UintArray]:
    """Return `count` buffers of `size` words; `first` says how many others they are used beside."""
    row = -(-4 * size // _LINE) * _LINE + _STAGGER
    pool = np.empty(first * _STAGGER + count * row + _LINE, np.uint8)
    pool = pool[-pool.ctypes.data % _LINE + first * _STAGGER :]
    return [pool[i * row :][: 4 * size].view(np.uint32) for i in range(count)]


class Scratch:
    """Work buffers for one span. Who takes turns with one finds it in the cache."""

    COUNT = 3

    def __init__(self) -> None:
        self.size = 0
        self.rows = _rows(self.COUNT, 0)

    def reserve(self, size: int) -> None:
        """Make room for spans of `size`; views of the buffers before stay what they are."""
        if size > self.size:
            self.size, self.rows = size, _rows(self.COUNT, size)


class ShortCuts:
    """Makes the calls that round spans onto one grid: of SPAN elements, by chance of KEY_SPAN."""

    def __init__(self, grid: Grid, scratch: Scratch) -> None:
        self.grid = grid
        self.scratch = scratch
        self.drawing = Drawing(grid)
        self.size = 0

    def _reserve(self) -> None:
        """Make room for a span; an operand that is the same all over is an array, too.

        With arrays numpy's maximum and minimum are faster than with numbers, and with one that
        stays in the nearest cache, used again for every row of ROW numbers, faster still.
        """
        if self.size:
            return
        stochastic = self.grid.stochastic
        self.size = KEY_SPAN if stochastic else SPAN
        self.scratch.reserve(self.size)
        (self.lowest,) = _rows(1, KEY_SPAN if stochastic else ROW, first=Scratch.COUNT)
        self.lowest.fill(self.grid.lowest)
        if stochastic:
            (self.draws,) = _rows(1, KEY_SPAN + FIRSTS, first=Scratch.COUNT + 1)
            self.draws[:] = draw_table(KEY_SPAN + FIRSTS)

    def bind(self, x: FloatArray, out: FloatArray) -> Callable[[], object]:
        """Return the call that rounds span `x` into `out`; not for the stochastic mode."""
        grid, plain = self.grid, partial(round_span, self.grid, x, out, (0, 0))
        if MODES[grid.mode] != "nearest_even" or grid.flush_below or not x.size:
            return plain
        self._reserve()
        work, spare = (row[: x.size] for row in self.scratch.rows[:2])
        if grid.wide:
            return bind_wide(grid, x, out, (work, spare), plain) or plain
        rows = self.scratch.rows[0][: -(-x.size // ROW) * ROW].reshape(-1, ROW)
        raised = (work, self.lowest[: x.size]) if x.size < ROW else (rows, self.lowest)
        return bind_narrow(grid, x, out, work, raised, plain)

    def bind_drawn(self, x: FloatArray, out: FloatArray) -> Callable[[tuple[int, int]], object]:
        """Return the call of a key that rounds span `x` into `out`."""
        grid, n, plain = self.grid, x.size, partial(round_span, self.grid, x, out)
        if not grid.stochastic or grid.flush_below or grid.tapered or not n:
            return plain
        if grid.wide and (not grid.shift or grid.inf_overflow == grid.max):
            return plain
        self._reserve()
        bits, result, largest = x.view(np.uint32), out.view(np.uint32), grid.max
        size, spare, draw = (row[:n] for row in self.scratch.rows)
        floats = size.view(np.float32), spare.view(np.float32)
        work = (size, spare, draw, *floats, self.lowest[:n])
        drawing, sizes, wide, table = self.drawing, self.drawing.size, grid.wide, self.draws

        def drawn(key: tuple[int, int]) -> None:
            if wide:
                special = np.isnan(np.maximum.reduce(x))
            else:
                np.bitwise_and(bits, sizes, out=size)
                special = np.maximum.reduce(size) > largest
            if special:
                plain(key)
                return
            factor, first = key
            np.multiply(table[first : first + n], np.uint32(factor), out=draw)
            drawing(bits, work, result)

        return drawn
