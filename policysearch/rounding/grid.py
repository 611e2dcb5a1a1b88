"""A format and a way to round, as float32 bit patterns: what the numpy and the C code share.

The value is scaled by a power of two so that the format's quantum becomes 1, rounded to an integer
and scaled back; every step but the rounding is exact, also for subnormals. Formats with float32's
exponent range are rounded on the bits instead. A result is found as if the exponent range had no
upper end, then put through overflow, then through the flush of subnormals (`Rounding`). Of a
tapered format every number is scaled by the quantum of its own binade.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from policysearch.formats import Format, Rounding, check_fits_float32
from policysearch.values import one_of

FloatArray = npt.NDArray[np.float32]
UintArray = npt.NDArray[np.uint32]

SPAN = 65536
"""Elements worked on at a time, so that they and the scratch stay in the cache."""
KEY_SPAN = 32768
"""Elements that draw with one key, rounded at a time by chance."""

MODES = ("nearest_even", "toward_zero", "nearest_away", "stochastic")
SIGN, ABS, INF, QUIET, ONE = 0x80000000, 0x7FFFFFFF, 0x7F800000, 0x7FC00000, 0x3F800000
MASK64 = 2**64 - 1
FIRSTS = 4096
"""The draws of a span start at one of the first so many words of the table of draws."""
FINE_SHIFT = 20
"""Dropped bits from which subnormals, too, are rounded by chance with no more bits than these."""


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@dataclass(frozen=True)
class Grid:
    """A format and rounding as float32 bit patterns; the extension reads the fields in order."""

    mode: int
    wide: int
    """1 where the exponent range is float32's, so that rounding works on the bits."""
    shift: int
    lowest: int
    """Exponent bits of the smallest normal number; subnormals share its quantum."""
    scale: int
    """`scale - exponent bits` is the bits of the factor that makes the quantum 1."""
    mantissa: int
    """Exponent bits to take away from those of a value to get those of its quantum."""
    max: int
    finite_overflow: int
    inf_overflow: int
    flush_below: int
    tapered: int = 0
    taper: tuple[int, int, int] = (0, 0, 0)
    """Of a tapered format: absolute exponents beyond which a mantissa bit is lost."""

    @property
    def stochastic(self) -> bool:
        return MODES[self.mode] == "stochastic"

    def packed(self) -> bytes:
        """The fields as the extension reads them."""
        *numbers, taper = (getattr(self, row.name) for row in fields(self))
        return struct.pack("=14I", *numbers, *taper)


@cache
def grid_of(fmt: Format, rounding: Rounding) -> Grid:
    """Return the bit patterns of `fmt` with `rounding`; InputError where float32 cannot hold it."""
    one_of("rounding.mode", rounding.mode, MODES)
    own = {"nearest_even": "nearest_away"} if fmt.ties == "away" else {}
    mode = MODES.index(own.get(rounding.mode, rounding.mode))
    one_of("rounding.overflow", rounding.overflow, ("inf", "saturate"))
    one_of("rounding.subnormals", rounding.subnormals, ("keep", "flush"))
    exponent, mantissa = fmt.exponent_bits, fmt.mantissa_bits
    check_fits_float32(fmt)
    inf = {"ieee": INF, "nan": QUIET, "none": _bits(fmt.max)}[fmt.specials]
    if rounding.overflow == "saturate" and (exponent, mantissa) != (8, 23):
        inf = _bits(fmt.max)
    return Grid(
        mode=mode,
        wide=int(exponent == 8),
        shift=23 - mantissa,
        lowest=_bits(fmt.min_subnormal if fmt.taper else fmt.min_normal),
        scale=(254 + mantissa) << 23,
        mantissa=mantissa << 23,
        max=_bits(fmt.max),
        finite_overflow=_bits(fmt.max) if rounding.mode == "toward_zero" else inf,
        inf_overflow=inf,
        flush_below=_bits(fmt.min_normal) if rounding.subnormals == "flush" else 0,
        tapered=int(bool(fmt.taper)),
        taper=_taper(fmt),
    )


def _taper(fmt: Format) -> tuple[int, int, int]:
    if not fmt.taper:
        return 0, 0, 0
    first, second, third, _ = (exponent for exponent, _ in fmt.taper)
    return first, second, third


Word = TypeVar("Word", int, npt.NDArray[Any])
"""A 64-bit number, or an array of uint64, whose sums and products wrap around as they should."""


def mix64(value: Word) -> Word:
    """Return the SplitMix64 step of 64-bit values (Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def span_key(mixed_seed: int, counter: int, span: Word) -> tuple[Word, Word]:
    """Return (a, f), a odd, of a span or of each of many.

    Element j of the span draws table[f + j] * a, modulo 2^32.

    `mixed_seed` is `mix64` of the seed, made once because it is slow in Python.
    The words of the table are odd, so that over keys every draw takes all odd values alike.
    f is a multiple of a cache line's 16 words.
    """
    key = mix64(mix64(mixed_seed ^ counter) ^ span)
    return (key & 0xFFFFFFFF) | 1, (key >> 32) % FIRSTS & 0xFFF0
