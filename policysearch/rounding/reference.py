"""The reference of the quantiser, in numpy: what the rounded values of one span are."""

from __future__ import annotations

import numpy as np

from policysearch.rounding.grid import (
    ABS,
    INF,
    MODES,
    ONE,
    QUIET,
    SIGN,
    FloatArray,
    Grid,
    UintArray,
)
from policysearch.rounding.stochastic import Drawing, draws_of


def round_span(grid: Grid, x: FloatArray, out: FloatArray, key: tuple[int, int]) -> None:
    """Write `x`, rounded onto `grid` to `out`, which may be `x`.

    `key` of `span_key` says what the stochastic mode draws, for at most KEY_SPAN elements.
    NaN stays NaN.
    """
    bits = x.view(np.uint32)
    if grid.wide and not grid.shift:
        # A product with 1 changes signalling NaNs alone: they become quiet, as everywhere else.
        rounded = (x * np.float32(1)).view(np.uint32)
    else:
        if grid.stochastic:
            draw = _draw_tapered if grid.tapered else _draw
            rounded = draw(grid, bits, key)
        else:
            rounded = _round_wide(grid, bits) if grid.wide else _round_narrow(grid, bits)
        _overflow(grid, bits, rounded)
    if grid.flush_below:
        np.copyto(rounded, rounded & SIGN, where=(rounded & ABS) < grid.flush_below)
    np.copyto(out.view(np.uint32), rounded)


def _round_wide(grid: Grid, x: UintArray) -> UintArray:
    """Round the mantissa in place in the encoding: a carry moves on into the exponent."""
    unit, mode = 1 << grid.shift, MODES[grid.mode]
    if mode == "nearest_even":
        x = x + (((x >> grid.shift) & 1) + (unit // 2 - 1))
    elif mode == "nearest_away":
        x = x + unit // 2
    return x & np.uint32(SIGN | (ABS & -unit))


def _round_narrow(grid: Grid, x: UintArray) -> UintArray:
    """Scale to a quantum of 1, round to an integer, scale back; all but the rounding is exact."""
    x = _within(grid, x)
    exponent, mode = np.maximum(x & INF, np.uint32(grid.lowest)), MODES[grid.mode]
    lost = _lost(grid, exponent)
    scaled = x.view(np.float32) * (grid.scale - exponent - lost).view(np.float32)
    if mode == "nearest_even":
        whole = np.rint(scaled)
    else:
        if mode == "nearest_away":
            # The largest float below 1/2: 1/2 itself would carry 0.49999997 up to 1.
            scaled += ((x & SIGN) | 0x3EFFFFFF).view(np.float32)
        whole = np.trunc(scaled)
    rounded: FloatArray = whole * (exponent - np.uint32(grid.mantissa) + lost).view(np.float32)
    return rounded.view(np.uint32)


def _within(grid: Grid, x: UintArray) -> UintArray:
    """Return `x`, for a tapered format with what is far beyond its largest number brought near.

    The factor of 2^127 would not be a normal number.
    """
    if not grid.tapered:
        return x
    near: UintArray = np.minimum(x & np.uint32(ABS), np.uint32(grid.max + (1 << 23)))
    near |= x & np.uint32(SIGN)
    return near


def _lost(grid: Grid, exponent: UintArray) -> UintArray | np.uint32:
    """Return the mantissa bits that a tapered format lacks at these exponent bits, as such bits."""
    if not grid.tapered:
        return np.uint32(0)
    distance = np.abs((exponent >> 23).astype(np.int32) - 127)
    lost = sum((distance > farthest).astype(np.uint32) for farthest in grid.taper)
    bits: UintArray = np.asarray(lost, np.uint32) << np.uint32(23)
    return bits


def _draw_tapered(grid: Grid, x: UintArray, key: tuple[int, int]) -> UintArray:
    """Round by chance: the fraction of the quantum is compared with 23 drawn bits."""
    size = _within(grid, x) & np.uint32(ABS)
    exponent = np.maximum(size & INF, np.uint32(grid.lowest))
    lost = _lost(grid, exponent)
    scaled = size.view(np.float32) * (grid.scale - exponent - lost).view(np.float32)
    whole = np.floor(scaled)
    drawn = ((draws_of(key, x.size) >> np.uint32(9)) | np.uint32(ONE)).view(np.float32)
    whole += (scaled - whole) - drawn > np.float32(-1)
    whole *= (exponent - np.uint32(grid.mantissa) + lost).view(np.float32)
    rounded: UintArray = whole.view(np.uint32) | (x & np.uint32(SIGN))
    return rounded


def _draw(grid: Grid, x: UintArray, key: tuple[int, int]) -> UintArray:
    """Round by chance: see `Drawing`."""
    size, spare, target = x & np.uint32(ABS), np.empty_like(x), np.empty_like(x)
    floats = size.view(np.float32), spare.view(np.float32)
    lowest = np.full_like(x, grid.lowest)
    Drawing(grid)(x, (size, spare, draws_of(key, x.size), *floats, lowest), target)
    return target


def _overflow(grid: Grid, x: UintArray, rounded: UintArray) -> None:
    """Put right what is above the largest number or not a number."""
    over = ((rounded & ABS) > grid.max) | ((x & ABS) > INF)
    if not over.any():
        return
    given = x[over]
    size = given & ABS
    value = np.where(size == INF, np.uint32(grid.inf_overflow), np.uint32(grid.finite_overflow))
    value |= given & SIGN
    rounded[over] = np.where(size > INF, given | QUIET, value)
