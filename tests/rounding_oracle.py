"""What rounding must give, found by other means than the code under test."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import en_dtypes
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from policysearch.formats import FORMATS, Format, Rounding, format_named
from policysearch.rounding.grid import MODES, FloatArray
from policysearch.rounding.rounder import FASTS as ALL_FASTS
from policysearch.rounding.rounder import fast_ways

OWN = (
    *("e2m1", "e2m1fn", "e3m4", "e4m3", "e5m1", "e2m10fn", "e5m22", "e6m9", "e7m6fn", "e7m23"),
    *("e8m1", "e8m15", "e8m22", "e8m23"),
)
ALL = tuple(format_named(name) for name in (*FORMATS, *OWN))
WAYS = tuple(itertools.product(("inf", "saturate"), ("keep", "flush")))
"""What overflow and subnormals may become."""
ROUNDINGS = tuple(
    Rounding(mode, *way)  # type: ignore[arg-type]
    for mode, way in itertools.product(MODES, WAYS)
)
EXACT_ROUNDINGS = tuple(row for row in ROUNDINGS if row.mode != "stochastic")
FASTS = tuple(
    pytest.param(
        fast, marks=pytest.mark.skipif(fast not in fast_ways(), reason=f"{fast} is not there")
    )
    for fast in ALL_FASTS
)
"""What may do the rounding: a parameter for tests."""


def name_of(value: object) -> str:
    """A test id for a Format or Rounding."""
    if isinstance(value, Rounding):
        return f"{value.mode}-{value.overflow}-{value.subnormals}"
    return value.name if isinstance(value, Format) else str(value)


def floats(bits: npt.NDArray[Any]) -> FloatArray:
    """The float32 whose encodings are the integers `bits`."""
    return bits.astype(np.uint32).view(np.float32)


def random_bits(size: int, seed: int = 0) -> FloatArray:
    """Floats of uniformly random bit patterns: every binade, infinities and NaNs alike."""
    return floats(np.random.default_rng(seed).integers(0, 2**32, size, dtype=np.uint32))


def library_type(fmt: Format) -> npt.DTypeLike | None:
    """The dtype of numpy or ml_dtypes with this name, or None."""
    if fmt.name == "float16":
        return np.float16
    if fmt.name == "hifloat8":
        own: npt.DTypeLike = en_dtypes.hifloat8
        return own
    return None if fmt.name == "float32" else getattr(ml_dtypes, fmt.name, None)


def by_library(x: FloatArray, fmt: Format) -> FloatArray:
    """`x` to nearest even by numpy or ml_dtypes, but NaN where the format has no NaN."""
    with np.errstate(all="ignore"):
        found = x.astype(library_type(fmt)).astype(np.float32)
    if fmt.specials == "none":
        found[np.isnan(x)] = np.nan
    # hifloat8 has one zero; here every zero keeps its sign
    return np.copysign(found, x) if fmt.taper else found


HIFLOAT8_BITS = np.array([3] * 4 + [2] * 4 + [1] * 8 + [0] * 7)
"""Mantissa bits by absolute exponent, as arXiv 2409.16626 has them."""


@functools.cache
def hifloat8_numbers() -> tuple[float, ...]:
    """Zero and the positive numbers, as if those with 1 mantissa bit went on to 2^20."""
    found = [0.0]
    for exponent in range(-22, 20):
        bits = int(HIFLOAT8_BITS[min(abs(exponent), 15) if exponent > 0 else -exponent])
        found += [2.0**exponent * (1 + step / 2**bits) for step in range(2**bits)]
    return tuple(found)


def mantissa_bits(exponent: npt.NDArray[Any], fmt: Format) -> npt.NDArray[Any] | int:
    """Mantissa bits of the numbers with these exponents."""
    if not fmt.taper:
        return fmt.mantissa_bits
    bits: npt.NDArray[Any] = HIFLOAT8_BITS[np.minimum(np.abs(exponent), 22)]
    return bits


def rounds_away(mode: str, fmt: Format) -> bool:
    """Whether a tie goes away from zero."""
    return mode == "nearest_away" or (mode == "nearest_even" and fmt.name == "hifloat8")


def quantum(x: FloatArray, fmt: Format) -> npt.NDArray[np.float64]:
    """Distance between the two numbers of the format next to each `x`, as if it had no end."""
    exponent = np.frexp(np.abs(x).astype(np.float64))[1] - 1
    exponent = np.maximum(exponent, -22 if fmt.taper else fmt.min_exponent)
    step: npt.NDArray[np.float64] = np.ldexp(1.0, exponent - mantissa_bits(exponent, fmt))
    return step


def by_float64(x: FloatArray, fmt: Format, rounding: Rounding) -> FloatArray:
    """`x` rounded in float64, step by step as the definition says; not for stochastic."""
    if (fmt.exponent_bits, fmt.mantissa_bits) == (8, 23):
        flushed = (rounding.subnormals == "flush") & (np.abs(x) < fmt.min_normal)
        return np.where(flushed, np.copysign(np.float32(0), x), x)
    with np.errstate(all="ignore"):
        step = quantum(x, fmt)
        size = np.abs(x).astype(np.float64) / step
        if rounds_away(rounding.mode, fmt):
            size = np.floor(size + 0.5) * step
        elif rounding.mode == "nearest_even":
            size = np.rint(size) * step
        else:
            size = np.trunc(size) * step
        above = np.inf if fmt.specials == "ieee" else np.nan
        if rounding.overflow == "saturate" or fmt.specials == "none":
            above = fmt.max
        finite_above = fmt.max if rounding.mode == "toward_zero" else above
        size = np.where(size > fmt.max, np.where(np.isinf(x), above, finite_above), size)
        if rounding.subnormals == "flush":
            size = np.where(size < fmt.min_normal, 0.0, size)
        size = np.where(np.isnan(x), np.nan, size)
        return np.copysign(size, x).astype(np.float32)


def numbers(fmt: Format, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The numbers of the format with these codes, counted from 0 up, as if it had no end."""
    if fmt.taper:
        tapered: npt.NDArray[np.float64] = np.array(hifloat8_numbers())[codes]
        return tapered
    exponent, mantissa = np.divmod(codes.astype(np.int64), int(2**fmt.mantissa_bits))
    whole = mantissa + np.where(exponent > 0, 2.0**fmt.mantissa_bits, 0.0)
    found: npt.NDArray[np.float64] = np.ldexp(
        whole, np.maximum(exponent - 1, 0) + fmt.min_exponent - fmt.mantissa_bits
    )
    return found


def count_of(fmt: Format) -> int:
    """How many finite numbers of one sign the format has, zero among them."""
    if fmt.taper:
        return hifloat8_numbers().index(fmt.max) + 1
    steps = fmt.max / 2.0 ** (fmt.max_exponent - fmt.mantissa_bits) - 2.0**fmt.mantissa_bits
    binades = fmt.max_exponent - fmt.min_exponent + 1
    return int(binades * 2**fmt.mantissa_bits + steps + 1)


def by_table(x: FloatArray, fmt: Format, mode: str) -> FloatArray:
    """Finite `x` up to the largest number, found among all numbers of the format."""
    table = numbers(fmt, np.arange(count_of(fmt) + 1))
    assert table[-2] == fmt.max
    size = np.abs(x).astype(np.float64)
    code = np.searchsorted(table, size, side="right") - 1
    middle = (table[code] + table[code + 1]) / 2
    up = np.zeros(x.shape, bool)
    if rounds_away(mode, fmt):
        up = size >= middle
    elif mode == "nearest_even":
        up = (size > middle) | ((size == middle) & (code % 2 == 1))
    code = np.where(up, code + 1, code)
    over = np.inf if fmt.specials == "ieee" else np.nan
    over = fmt.max if fmt.specials == "none" else over
    found = np.where(code >= count_of(fmt), over, table[code])
    return np.copysign(found, x).astype(np.float32)


def mismatches(got: FloatArray, expected: FloatArray) -> int:
    """Places where the bits differ; any NaN equals any other."""
    differ = got.view(np.uint32) != expected.view(np.uint32)
    return int(np.count_nonzero(differ & ~(np.isnan(got) & np.isnan(expected))))


def boundaries(fmt: Format, most: int = 70_000) -> FloatArray:
    """Numbers of the format, the ties between them, and the float32 next to each on both sides.

    All numbers where they are few, else `most` at random; the ends of the range always. Both signs.
    """
    count = count_of(fmt) + 1
    codes = np.arange(min(count, most))
    if count > most:
        codes = np.random.default_rng(1).integers(0, count, most)
        ends = np.arange(8)
        codes = np.concatenate(
            (ends, int(2**fmt.mantissa_bits) + ends - 4, count - 1 - ends, codes)
        )
    below, above = numbers(fmt, codes), numbers(fmt, codes + 1)
    with np.errstate(over="ignore"):
        sizes = np.concatenate((below, (below + above) / 2)).astype(np.float32)
    bits = sizes.view(np.uint32)
    special = np.array([0x7F800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x7F7FFFFF, 0, 1])
    bits = np.concatenate((bits, bits + 1, np.maximum(bits, 1) - 1, special.astype(np.uint32)))
    return floats(np.concatenate((bits, bits | np.uint32(0x80000000))))
