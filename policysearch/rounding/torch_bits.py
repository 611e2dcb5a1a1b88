"""The quantiser on torch tensors: the operations of `reference.py`, on int32 views of the bits.

Casts to torch's own narrow dtypes are not used: compilers drop a cast and the one back as if
nothing were rounded, and their overflow is not that of `Rounding`. torch has no arithmetic on
uint32, so bit patterns are int32 here, whose sums and products wrap around alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from policysearch.rounding.grid import (
    ABS,
    FINE_SHIFT,
    INF,
    KEY_SPAN,
    MASK64,
    MODES,
    ONE,
    QUIET,
    SIGN,
    Grid,
    mix64,
    span_key,
)

_BINADE = 1 << 23
_HASH = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1))
"""Shifts and factors of `draw_table`."""

MOST_GRIDS = 256
"""Grids for which a kernel is compiled in one process; the compiler's own limit is eight."""

Tensor = Any


def keys_of(elements: int, seed: int, counter: int) -> Tensor:
    """Return the keys of the spans that so many elements draw with, [span, 2], on the host."""
    spans = np.arange(-(-elements // KEY_SPAN), dtype=np.uint64)
    keys = np.stack(span_key(mix64(seed & MASK64), counter & MASK64, spans), axis=1)
    return torch.from_numpy(keys.astype(np.uint32).view(np.int32))


def rounded(grid: Grid, x: Tensor, keys: Tensor = None) -> Tensor:
    """Return the float32 tensor `x` rounded onto `grid`, bit for bit as `round_span` has it.

    The stochastic mode draws for the elements of `x`, in C order, by the `keys` of `keys_of`. On
    a GPU all operations are one kernel, where torch has a compiler there.
    """
    if not grid.stochastic and not x.is_contiguous() and _is_dense(x):
        flat = rounded(grid, x.as_strided((x.numel(),), (1,)))
        return flat.as_strided(x.shape, x.stride())
    flat = x.reshape(-1)
    if x.is_cuda and x.numel() > 1 and _compiles(x.device):
        found = _compiled_rounding(grid)(flat, keys)
    else:
        found = _rounded_tensor(grid, flat, keys)
    return found.view(x.shape)


def _is_dense(x: Tensor) -> bool:
    """Return whether the elements of a tensor fill a block of memory, in any order of axes."""
    expected = 1
    for stride, extent in sorted(zip(x.stride(), x.shape, strict=True)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _rounded_tensor(grid: Grid, x: Tensor, keys: Tensor = None) -> Tensor:
    bits = x.view(torch.int32)
    if grid.stochastic:
        found = _by_chance(grid, bits, _draws(bits, keys))
    else:
        found = _wide(grid, bits) if grid.wide else _narrow(grid, bits)
    found = _overflow(grid, bits, found)
    if grid.flush_below:
        found = torch.where((found & ABS) < grid.flush_below, found & _i32(SIGN), found)
    return found.view(torch.float32)


@lru_cache(maxsize=MOST_GRIDS)
def _compiled_rounding(grid: Grid) -> Callable[..., Tensor]:
    """Return `_rounded_tensor` onto a grid as one kernel: nothing between leaves the registers."""
    function = torch.compile(partial(_rounded_tensor, grid), dynamic=True, fullgraph=True)
    limit = torch._dynamo.config.patch(recompile_limit=MOST_GRIDS, specialize_int=True)
    return limit(function)  # type: ignore[no-any-return]


@lru_cache(maxsize=8)
def _compiles(device: Any) -> bool:
    """Return whether torch compiles for the device: it takes Triton and a C compiler."""
    try:
        doubled = torch.compile(lambda x: x + x)(torch.ones(2, device=device))
    except Exception:  # whatever a toolchain raises: then each operation is a kernel of its own
        return False
    return bool((doubled == 2.0).all())


def _i32(pattern: int) -> int:
    """Return the int32 with this bit pattern."""
    return (pattern + (1 << 31)) % (1 << 32) - (1 << 31)


def _right(bits: Tensor, count: int) -> Tensor:
    """Return the bits shifted right, zeros coming in."""
    return (bits >> count) & ((1 << (32 - count)) - 1) if count < 32 else torch.zeros_like(bits)


def _wide(grid: Grid, x: Tensor) -> Tensor:
    unit, mode = 1 << grid.shift, MODES[grid.mode]
    if unit == 1:
        return x
    if mode == "nearest_even":
        x = x + (((x >> grid.shift) & 1) + (unit // 2 - 1))
    elif mode == "nearest_away":
        x = x + unit // 2
    return x & _i32(SIGN | (ABS & -unit))


def _narrow(grid: Grid, x: Tensor) -> Tensor:
    x = _within(grid, x)
    exponent, mode = (x & INF).clamp_min(grid.lowest), MODES[grid.mode]
    lost = _lost(grid, exponent)
    scaled = x.view(torch.float32) * (_i32(grid.scale) - exponent - lost).view(torch.float32)
    if mode == "nearest_even":
        whole = scaled.round()
    else:
        if mode == "nearest_away":
            scaled = scaled + ((x & _i32(SIGN)) | 0x3EFFFFFF).view(torch.float32)
        whole = scaled.trunc()
    quantum = (exponent - grid.mantissa + lost).view(torch.float32)
    return (whole * quantum).view(torch.int32)


def _within(grid: Grid, x: Tensor) -> Tensor:
    if not grid.tapered:
        return x
    return (x & ABS).clamp_max(grid.max + _BINADE) | (x & _i32(SIGN))


def _lost(grid: Grid, exponent: Tensor) -> Tensor | int:
    if not grid.tapered:
        return 0
    distance = ((exponent >> 23) - 127).abs()
    lost = sum((distance > farthest).to(torch.int32) for farthest in grid.taper)
    return lost << 23


def _overflow(grid: Grid, x: Tensor, found: Tensor) -> Tensor:
    size, ends = x & ABS, (grid.finite_overflow, grid.inf_overflow)
    if not (grid.wide and ends == (INF, INF)):  # there a carry has made infinity already
        sign = x & _i32(SIGN)
        # a constant beside a tensor is int64 in `torch.where`, and a view of that twice as long
        found = torch.where((found & ABS) > grid.max, sign | ends[0], found)
        if ends[0] != ends[1]:
            found = torch.where(size == INF, sign | ends[1], found)
    return torch.where(size > INF, x | QUIET, found)


def _by_chance(grid: Grid, x: Tensor, draw: Tensor) -> Tensor:
    if grid.wide and not grid.shift:
        return x
    if grid.tapered:
        return _chance_tapered(grid, x, draw)
    if grid.shift >= FINE_SHIFT and not grid.wide:
        return _chance_fine(grid, x, draw)
    kept = _i32(SIGN | (ABS & -(1 << grid.shift)))
    found = (x + _right(draw, 32 - grid.shift)) & kept
    if grid.wide:
        return found
    return torch.where((x & ABS) < grid.lowest, _chance_subnormal(grid, x, draw), found)


def _chance_fine(grid: Grid, x: Tensor, draw: Tensor) -> Tensor:
    size = x & ABS
    most = size.clamp_min(grid.lowest)
    size = (size.view(torch.float32) + most.view(torch.float32)).view(torch.int32)
    size = (size + _right(draw, 32 - grid.shift)) & _i32(SIGN | (ABS & -(1 << grid.shift)))
    most = (size - _BINADE).clamp_min(grid.lowest)
    size = (size.view(torch.float32) - most.view(torch.float32)).view(torch.int32)
    return size | (x & _i32(SIGN))


def _chance_subnormal(grid: Grid, x: Tensor, draw: Tensor) -> Tensor:
    unit, quantum = _float(grid.scale - grid.lowest), _float(grid.lowest - grid.mantissa)
    fraction = (x & ABS).view(torch.float32) * unit
    return (_chance_whole(fraction, draw) * quantum).view(torch.int32) | (x & _i32(SIGN))


def _chance_tapered(grid: Grid, x: Tensor, draw: Tensor) -> Tensor:
    size = _within(grid, x) & ABS
    exponent = (size & INF).clamp_min(grid.lowest)
    lost = _lost(grid, exponent)
    scaled = size.view(torch.float32) * (_i32(grid.scale) - exponent - lost).view(torch.float32)
    quantum = (exponent - grid.mantissa + lost).view(torch.float32)
    return (_chance_whole(scaled, draw) * quantum).view(torch.int32) | (x & _i32(SIGN))


def _chance_whole(scaled: Tensor, draw: Tensor) -> Tensor:
    """Return the whole number below or above: 23 drawn bits are compared with the fraction."""
    whole = scaled.floor()
    up = (scaled - whole) - (_right(draw, 9) | ONE).view(torch.float32) > -1.0
    return whole + up.to(torch.float32)


def _float(pattern: int) -> float:
    return float(np.array(pattern & 0xFFFFFFFF, np.uint32).view(np.float32))


def _draws(like: Tensor, keys: Tensor) -> Tensor:
    """Return what the elements of a flat tensor draw; see `draws_of`."""
    word = keys[:, 1, None] + torch.arange(KEY_SPAN, dtype=torch.int32, device=like.device)
    for shift, factor in _HASH:
        word = (word ^ _right(word, shift)) * _i32(factor)
    return ((word | 1) * keys[:, 0, None]).reshape(-1)[: len(like)]
