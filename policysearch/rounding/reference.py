"""The numpy reference of the quantiser: blocks rounded in a few vector passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from policysearch.rounding.grid import (
    ABS,
    BLOCK,
    FIRSTS,
    INF,
    MODES,
    QUIET,
    SIGN,
    FloatArray,
    Grid,
    UintArray,
)
from policysearch.rounding.nearest import Known, bind_narrow, bind_wide
from policysearch.rounding.stochastic import Drawing, Work, draw_table

_LINE = 64  # bytes: float arithmetic on arrays that start elsewhere takes nearly twice as long
_STAGGER = 1088  # bytes between scratch buffers, so that they do not alias in the cache


def _rows(count: int, size: int, first: int = 0) -> list[UintArray]:
    """Return `count` buffers of `size` words; `first` says how many others they are used beside."""
    row = -(-4 * size // _LINE) * _LINE + _STAGGER
    pool = np.empty(first * _STAGGER + count * row + _LINE, np.uint8)
    pool = pool[-pool.ctypes.data % _LINE + first * _STAGGER :]
    return [pool[i * row :][: 4 * size].view(np.uint32) for i in range(count)]


class Scratch:
    """Work buffers for one block. Who takes turns with one finds it in the cache."""

    COUNT = 5

    def __init__(self) -> None:
        self.size = 0
        self.rows = _rows(self.COUNT, 0)

    def reserve(self, size: int) -> None:
        """Make room for blocks of `size`; views of the buffers before stay what they are."""
        if size > self.size:
            self.size, self.rows = size, _rows(self.COUNT, size)


class Blocks:
    """Rounds blocks of at most BLOCK elements in numpy."""

    def __init__(self, grid: Grid, scratch: Scratch) -> None:
        self.grid = grid
        self.scratch = scratch
        self.drawing = Drawing(grid)
        self.reserve(0)

    def reserve(self, size: int) -> None:
        """Make room for blocks of `size`; operands that are the same all over are arrays, too.

        With arrays numpy's maximum and minimum are faster than with numbers.
        """
        self.scratch.reserve(size)
        self.size = size
        saturate = self.grid.inf_overflow == self.grid.max
        constants = [self.grid.lowest, self.grid.max, self.grid.max | SIGN][: 3 if saturate else 1]
        rows = _rows(len(constants), size, first=Scratch.COUNT)
        for row, value in zip(rows, constants, strict=True):
            row.fill(value)
        self.lowest = rows[0]
        self.limits = [row.view(np.float32) for row in rows[1:]]
        if self.grid.stochastic:
            (self.draws,) = _rows(1, size + FIRSTS, first=Scratch.COUNT + 3)
            self.draws[:] = draw_table(size + FIRSTS)

    def __call__(self, x: FloatArray, out: FloatArray, key: tuple[int, int]) -> None:
        """Write `x` rounded to `out`, which may be `x`; `key` of `block_key` where stochastic."""
        if x.size > self.size:
            self.reserve(x.size)
        bits, written = x.view(np.uint32), out.view(np.uint32)
        target = _round_bits(self.grid, self, bits, written, key)
        if self.grid.flush_below:
            _flush(self.grid, self.scratch.rows[1][: x.size], target)
        if target is not written:
            np.copyto(written, target)

    def drawing_work(self, n: int) -> Work:
        """Return the views of the work buffers that a block of `n` is rounded by chance with."""
        b, c, e = (self.scratch.rows[i][:n] for i in (1, 2, 4))
        return c, b, e, c.view(np.float32), b.view(np.float32), self.lowest[:n]

    def bind_drawn(
        self, x: FloatArray, out: FloatArray
    ) -> Callable[[tuple[int, int]], object] | None:
        """Return the call of a key that rounds block `x` into `out`, as `bind` does.

        None where there is no such short cut: it serves the stochastic mode without flush.
        """
        grid, n = self.grid, x.size
        if not grid.stochastic or grid.flush_below or not 0 < n <= BLOCK:
            return None
        if grid.wide and (not grid.shift or grid.inf_overflow == grid.max):
            return None
        if self.size < n:
            self.reserve(BLOCK)
        bits, result, work = x.view(np.uint32), out.view(np.uint32), self.drawing_work(n)
        size, draw, largest = work[0], work[2], grid.max
        drawing, sizes, wide = self.drawing, self.drawing.size, grid.wide

        def drawn(key: tuple[int, int]) -> None:
            if wide:
                special = np.isnan(np.maximum.reduce(x))
            else:
                np.bitwise_and(bits, sizes, out=size)
                special = np.maximum.reduce(size) > largest
            if special:
                self(x, out, key)
                return
            factor, first = key
            np.multiply(self.draws[first : first + n], np.uint32(factor), out=draw)
            drawing(bits, work, result)

        return drawn

    def bind(self, x: FloatArray, out: FloatArray, known: Known) -> Callable[[], object] | None:
        """Return the call that rounds block `x` into `out` with all its views made beforehand.

        None where there is no such short cut: it serves rounding to nearest even without flush.
        A block with a value near or beyond the largest number takes the way of every other call.
        """
        grid = self.grid
        if MODES[grid.mode] != "nearest_even" or grid.flush_below or not 0 < x.size <= BLOCK:
            return None
        if self.size < x.size:
            self.reserve(BLOCK)
        work, spare = (self.scratch.rows[i][: x.size] for i in (2, 1))

        def otherwise() -> None:
            self(x, out, (0, 0))

        if grid.wide:
            return bind_wide(grid, x, out, (work, spare), otherwise, known)
        return bind_narrow(grid, x, out, (work, self.lowest[: x.size]), otherwise, known)

    def bind_sgd(
        self,
        param: FloatArray,
        velocity: FloatArray,
        grad: FloatArray,
        momentum: float,
        rate: FloatArray,
        known: Known,
    ) -> Callable[[], object]:
        """Return the momentum update of a block by the rounded `grad`, as `Rounder.bind_sgd`.

        The sign of a gradient of zero does not matter: from above 1/2, momentum never takes a
        velocity down to zero, so there is no -0 for it to be added to.
        """
        if self.size < grad.size:
            self.reserve(BLOCK)
        change = self.scratch.rows[4][: grad.size].view(np.float32)  # free in this rounding mode
        bound = self.bind(grad, change, replace(known, zero_signs=momentum <= 0.5))
        kept, rate = np.array(momentum, np.float32), rate.reshape(())

        def update() -> None:
            if bound:
                bound()
            else:
                self(grad, change, (0, 0))
            np.multiply(velocity, kept, out=velocity)
            np.add(velocity, change, out=velocity)
            np.multiply(velocity, rate, out=change)
            np.subtract(param, change, out=param)

        return update


def _round_bits(
    grid: Grid, blocks: Blocks, x: UintArray, out: UintArray, key: tuple[int, int]
) -> UintArray:
    """Round all but the flush; returns where the result lies: `out` or a work buffer."""
    n = x.size
    a, b, c, d, e = (row[:n] for row in blocks.scratch.rows)
    if grid.wide and not grid.shift:
        # A product with 1 changes signalling NaNs alone: they become quiet, as everywhere else.
        np.multiply(x.view(np.float32), np.float32(1), out=out.view(np.float32))
        return out
    saturate = grid.inf_overflow == grid.max
    limits = [limit[:n] for limit in blocks.limits]
    if grid.stochastic:
        np.multiply(blocks.draws[key[1] : key[1] + n], key[0], out=e)
    if grid.wide:
        if saturate:
            _clip(x, limits, a)
            x = a
        special = bool(np.isnan(np.maximum.reduce(x.view(np.float32))))
    else:
        np.bitwise_and(x, ABS if grid.stochastic else INF, out=c)
        peak = int(np.maximum.reduce(c)) & INF
        if saturate and peak >= grid.max & INF:
            _clip(x, limits, a)
            np.bitwise_and(a, ABS if grid.stochastic else INF, out=c)
            x = a
        special = peak == INF or (peak >= grid.max & INF and not saturate)
    target = d if special else out
    if grid.stochastic:
        blocks.drawing(x, blocks.drawing_work(n), target)
    elif grid.wide:
        _round_wide(grid, x, b, target)
    else:
        np.maximum(c, blocks.lowest[:n], out=c)
        _round_narrow(grid, x, (b, c, d), target)
    if special:
        _overflow(grid, x, target)
    return target


def _clip(x: UintArray, limits: list[FloatArray], out: UintArray) -> None:
    np.minimum(x.view(np.float32), limits[0], out=out.view(np.float32))
    np.maximum(out.view(np.float32), limits[1], out=out.view(np.float32))


def _round_wide(grid: Grid, x: UintArray, b: UintArray, target: UintArray) -> None:
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
    else:
        b = x
    np.bitwise_and(b, SIGN | (ABS & -unit), out=target)


def _round_narrow(grid: Grid, x: UintArray, work: tuple[UintArray, ...], target: UintArray) -> None:
    """Scale to a quantum of 1, round to an integer, scale back. `work[1]` holds the exponents."""
    b, c, d = work
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
