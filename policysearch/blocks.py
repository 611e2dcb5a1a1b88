"""The numpy reference of the quantiser: blocks rounded in a few vector passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policysearch.grid import (
    ABS,
    BLOCK,
    INF,
    MODES,
    ONE,
    QUIET,
    SIGN,
    FloatArray,
    Grid,
    UintArray,
)

_STAGGER = 1088  # bytes between scratch buffers, so that they do not alias in the cache


def _draw_table(size: int) -> UintArray:
    """One well mixed word per place in a block (the "lowbias32" mixer of C. Wellons)."""
    word = np.arange(size, dtype=np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        word ^= word >> np.uint32(shift)
        word *= np.uint32(factor)
    return word


class Blocks:
    """Rounds blocks of at most BLOCK elements in numpy, with work buffers of its own."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.size = 0
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Make room for blocks of `size`: staggered buffers, and operands faster as arrays."""
        row = 4 * size + _STAGGER
        pool = np.empty(8 * row, np.uint8)
        rows: list[UintArray] = [pool[i * row :][: 4 * size].view(np.uint32) for i in range(8)]
        self.size = size
        self.work = rows[:5]
        self.lowest, self.max, self.minus_max = rows[5:]
        self.lowest.fill(self.grid.lowest)
        self.max.fill(self.grid.max)
        self.minus_max.fill(self.grid.max | SIGN)
        self.draws = _draw_table(size) if self.grid.stochastic else self.lowest

    def __call__(self, x: FloatArray, out: FloatArray, key: tuple[int, int]) -> None:
        """Write `x` rounded to `out`, which may be `x`; `key` of `block_key` where stochastic."""
        if x.size > self.size:
            self.reserve(x.size)
        bits, written = x.view(np.uint32), out.view(np.uint32)
        target = _round_bits(self.grid, self, bits, written, key)
        if self.grid.flush_below:
            _flush(self.grid, self.work[1][: x.size], target)
        if target is not written:
            np.copyto(written, target)

    def bind(self, x: FloatArray, out: FloatArray) -> Callable[[], object] | None:
        """Return the call that rounds block `x` into `out` with all its views made beforehand.

        None where there is no such short cut: it serves rounding to nearest even without flush.
        A block with a value near or beyond the largest number takes the way of every other call.
        """
        grid = self.grid
        if MODES[grid.mode] != "nearest_even" or grid.flush_below or not 0 < x.size <= BLOCK:
            return None
        if self.size < x.size:
            self.reserve(BLOCK)  # once: calls that share work buffers find them in the cache
        b, c, d = (row[: x.size] for row in self.work[1:4])
        bits, result = x.view(np.uint32), out.view(np.uint32)
        if not grid.wide:
            return self._bind_narrow(x, out, (bits, b, c))
        if not grid.shift or grid.inf_overflow == grid.max:
            return None
        one, shift, half, kept = np.array(
            [1, grid.shift, (1 << grid.shift >> 1) - 1, -(1 << grid.shift) & 0xFFFFFFFF], np.uint32
        )

        def wide() -> None:
            if np.isnan(np.maximum.reduce(x)):
                self(x, out, (0, 0))
                return
            np.right_shift(bits, shift, out=d)
            np.bitwise_and(d, one, out=d)
            np.add(d, half, out=d)
            np.add(d, bits, out=d)
            np.bitwise_and(d, kept, out=result)

        return wide

    def _bind_narrow(
        self, x: FloatArray, out: FloatArray, views: tuple[UintArray, UintArray, UintArray]
    ) -> Callable[[], object]:
        bits, b, c = views
        y, unit, lowest = b.view(np.float32), c.view(np.float32), self.lowest[: x.size]
        infinite, scale = np.array([INF, self.grid.scale], np.uint32)
        top = self.grid.max & INF

        def narrow() -> None:
            np.bitwise_and(bits, infinite, out=c)
            np.maximum(c, lowest, out=c)
            if np.maximum.reduce(c) >= top:
                self(x, out, (0, 0))
                return
            np.subtract(scale, c, out=c)
            np.multiply(x, unit, out=y)
            np.rint(y, out=y)
            np.divide(y, unit, out=out)

        return narrow


def _round_bits(
    grid: Grid, blocks: Blocks, x: UintArray, out: UintArray, key: tuple[int, int]
) -> UintArray:
    """Round all but the flush; returns where the result lies: `out` or a work buffer."""
    n = x.size
    a, b, c, d, e = (row[:n] for row in blocks.work)
    if grid.wide and not grid.shift:
        # A product with 1 changes signalling NaNs alone: they become quiet, as everywhere else.
        np.multiply(x.view(np.float32), np.float32(1), out=out.view(np.float32))
        return out
    saturate = grid.inf_overflow == grid.max
    limits = (blocks.max[:n].view(np.float32), blocks.minus_max[:n].view(np.float32))
    if grid.stochastic:
        np.multiply(blocks.draws[:n], key[0], out=e)
        np.add(e, key[1], out=e)
    if grid.wide:
        if saturate:
            _clip(x, limits, a)
            x = a
        special = bool(np.isnan(np.maximum.reduce(x.view(np.float32))))
        target = d if special else out
        _round_wide(grid, x, b, e, target)
    else:
        np.bitwise_and(x, INF, out=c)
        np.maximum(c, blocks.lowest[:n], out=c)
        peak = int(np.maximum.reduce(c))
        special = peak == INF or (peak >= grid.max & INF and not saturate)
        target = a if special else out
        _round_narrow(grid, x, (b, c, d, e), target)
        if saturate and grid.max & INF <= peak < INF:
            _clip(target, limits, target)
    if special:
        _overflow(grid, x, target)
    return target


def _clip(x: UintArray, limits: tuple[FloatArray, FloatArray], out: UintArray) -> None:
    np.minimum(x.view(np.float32), limits[0], out=out.view(np.float32))
    np.maximum(out.view(np.float32), limits[1], out=out.view(np.float32))


def _round_wide(grid: Grid, x: UintArray, b: UintArray, draw: UintArray, target: UintArray) -> None:
    """Round the mantissa in place in the encoding: a carry moves on into the exponent."""
    unit = 1 << grid.shift
    mode = MODES[grid.mode]
    if mode == "nearest_even":
        np.right_shift(x, grid.shift, out=b)
        np.bitwise_and(b, 1, out=b)
        np.add(b, unit // 2 - 1, out=b)
        np.add(b, x, out=b)
    elif mode == "nearest_away":
        np.add(x, unit // 2, out=b)
    elif mode == "stochastic":
        np.right_shift(draw, 32 - grid.shift, out=b)
        np.add(b, x, out=b)
    else:
        b = x
    np.bitwise_and(b, SIGN | (ABS & -unit), out=target)


def _round_narrow(grid: Grid, x: UintArray, work: tuple[UintArray, ...], target: UintArray) -> None:
    """Scale to a quantum of 1, round to an integer, scale back. `work[1]` holds the exponents."""
    b, c, d, e = work
    y, whole = b.view(np.float32), d.view(np.float32)
    mode = MODES[grid.mode]
    np.subtract(grid.scale, c, out=b)
    np.multiply(x.view(np.float32), y, out=y)
    if mode == "nearest_even":
        np.rint(y, out=y)
    elif mode == "nearest_away":
        # The largest float below 1/2: 1/2 itself would carry 0.49999997 up to 1.
        np.bitwise_and(b, SIGN, out=d)
        np.bitwise_or(d, 0x3EFFFFFF, out=d)
        np.add(y, whole, out=y)
        np.trunc(y, out=y)
    elif mode == "stochastic":
        np.bitwise_and(b, ABS, out=b)
        np.trunc(y, out=whole)
        np.subtract(y, whole, out=y)
        np.right_shift(e, 9, out=e)
        np.bitwise_or(e, ONE, out=e)
        # fraction - (1 + u) is above -1, and its ceiling 0, exactly where fraction > u.
        np.subtract(y, e.view(np.float32), out=y)
        np.ceil(y, out=y)
        np.add(y, whole, out=y)
        np.add(y, np.float32(1), out=y)
        np.bitwise_and(x, SIGN, out=d)
        np.bitwise_or(b, d, out=b)
    else:
        np.trunc(y, out=y)
    np.subtract(c, grid.mantissa, out=c)
    np.multiply(y, c.view(np.float32), out=target.view(np.float32))


def _overflow(grid: Grid, x: UintArray, rounded: UintArray) -> None:
    """Put right what is above the largest number or not a number; rare, so not tuned."""
    over = ((rounded & ABS) > grid.max) | ((x & ABS) > INF)
    if not over.any():
        return
    given = x[over]
    size = given & ABS
    value = np.where(size == INF, np.uint32(grid.inf_overflow), np.uint32(grid.finite_overflow))
    value |= given & SIGN
    rounded[over] = np.where(size > INF, given | QUIET, value)


def _flush(grid: Grid, keep: UintArray, rounded: UintArray) -> None:
    """Turn subnormal results into a zero of their sign."""
    np.bitwise_and(rounded, ABS, out=keep)
    np.subtract(grid.flush_below - 1, keep, out=keep)
    signed = keep.view(np.int32)
    np.right_shift(signed, 31, out=signed)
    np.bitwise_or(keep, SIGN, out=keep)
    np.bitwise_and(rounded, keep, out=rounded)
