"""Stochastic rounding of a span in numpy: the draws, and narrow formats rounded with them.

Every float operation but the one that rounds is exact, so that a draw of all dropped bits is as
fair as can be: a value a fraction f above a number moves up in exactly f of all draws.
"""

from __future__ import annotations

import numpy as np

from policysearch.rounding.grid import ABS, FINE_SHIFT, ONE, SIGN, FloatArray, Grid, UintArray

_BINADE = 1 << 23  # in bits of a float32, a factor of 2

Work = tuple[UintArray, UintArray, UintArray, FloatArray, FloatArray, UintArray]
"""The sizes, a buffer, the draws; sizes and buffer as floats; the smallest normal number."""


def draw_table(size: int, first: int = 0) -> UintArray:
    """Return one odd, well mixed word per place from `first` on.

    The mixer is "lowbias32" of C. Wellons.
    """
    word = np.arange(first, first + size, dtype=np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        word ^= word >> np.uint32(shift)
        word *= np.uint32(factor)
    return word | np.uint32(1)


def draws_of(key: tuple[int, int], size: int) -> UintArray:
    """Return what the elements of a span draw by its `key` (see `span_key`)."""
    factor, first = key
    return draw_table(size, first) * np.uint32(factor)


class Drawing:
    """Rounds by chance onto a grid, as if no number were too large."""

    def __init__(self, grid: Grid) -> None:
        self._wide = bool(grid.wide)
        self._fine = grid.shift >= FINE_SHIFT and not self._wide
        kept = SIGN | (ABS & -(1 << grid.shift))
        unit, quantum = grid.scale - grid.lowest, grid.lowest - grid.mantissa
        # As operands, arrays of no dimension are faster than numbers.
        self.size = np.array(ABS, np.uint32)
        self._sign, self._one, self._binade, self._undrawn, self._kept, self._nine = (
            np.array(value, np.uint32) for value in (SIGN, ONE, _BINADE, 32 - grid.shift, kept, 9)
        )
        self._unit, self._quantum = (
            np.array(0 if grid.wide else value, np.uint32).view(np.float32)
            for value in (unit, quantum)
        )
        self._minus_one = np.array(-1, np.float32)

    def __call__(self, x: UintArray, work: Work, target: UintArray) -> None:
        """Write the rounded `x` to `target`, which may be `x`; the work buffers are spent."""
        if self._fine:
            self._round_fine(x, work, target)
        else:
            self._round_coarse(x, work, target)

    def _round_fine(self, x: UintArray, work: Work, target: UintArray) -> None:
        """Round where the quantum of a normal number is at least 2^FINE_SHIFT float32 ulps.

        `size + max(size, min_normal)` doubles a normal number and moves a subnormal one into the
        binade of min_normal, where it has the same quantum: on either the draw is added to the
        dropped bits. In that sum alone a subnormal number may lose bits,
        below 2^-FINE_SHIFT quanta.
        """
        size, most, draw, size_value, most_value, lowest = work
        np.right_shift(draw, self._undrawn, out=draw)
        np.maximum(size, lowest, out=most)
        np.add(size_value, most_value, out=size_value)
        np.add(size, draw, out=size)
        np.bitwise_and(size, self._kept, out=size)
        np.subtract(size, self._binade, out=most)
        np.maximum(most, lowest, out=most)
        np.subtract(size_value, most_value, out=size_value)
        np.bitwise_and(x, self._sign, out=most)
        np.bitwise_or(size, most, out=target)

    def _round_coarse(self, x: UintArray, work: Work, target: UintArray) -> None:
        """Round in the encoding, as if the exponent range were float32's.

        Subnormal results have more dropped bits than normal ones; they are rare and done apart
        (of a wide format they are not: float32 has the same).
        """
        size, noise, draw, _, _, lowest = work
        apart = None
        if not self._wide:
            tiny = (size < lowest).nonzero()[0]
            if tiny.size:
                apart = tiny, self._subnormals(x[tiny], draw[tiny])
        np.right_shift(draw, self._undrawn, out=noise)
        np.add(noise, x, out=noise)
        np.bitwise_and(noise, self._kept, out=target)
        if apart is not None:
            target[apart[0]] = apart[1]

    def _subnormals(self, x: UintArray, draw: UintArray) -> UintArray:
        """Return `x`, all below the smallest normal number, rounded with 23 drawn bits."""
        sign = x & self._sign
        fraction = (x ^ sign).view(np.float32) * self._unit
        whole = np.floor(fraction)
        fraction -= whole
        # fraction - (1 + u) is above -1 exactly where fraction > u.
        fraction -= ((draw >> self._nine) | self._one).view(np.float32)
        whole += fraction > self._minus_one
        whole *= self._quantum
        sign |= whole.view(np.uint32)
        return sign
