"""Number formats as rows, and how a value is rounded onto one.

Sources: IEEE 754-2019 (float16, float32); OCP 8-bit Floating Point Specification (OFP8) rev. 1.0
table 1 (float8_e4m3fn, float8_e5m2); OCP Microscaling Formats (MX) v1.0 table 1 (float6, float4);
arXiv 2409.16626 (hifloat8, of Huawei's Ascend). int8 is symmetric, as quantisers have it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from policysearch.values import InputError, near_miss

Specials = Literal["ieee", "nan", "none"]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    `specials` says what the top of the encoding holds: "ieee" infinities and NaNs in the whole
    last exponent, "nan" one NaN code and no infinity, "none" neither.

    A tapered format has fewer mantissa bits the farther a number is from 1: `taper` holds
    (largest absolute exponent, mantissa bits) pairs, each with one bit less than the last, and
    `largest` is the largest finite number. `ties` says where rounding to nearest takes a tie in
    this format's own hardware: "away" makes the mode "nearest_even" mean "nearest_away".
    `own_bias` is the exponent's where it has not the usual. One exponent bit makes integers.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    specials: Specials = "ieee"
    storage_bits: int = 0
    taper: tuple[tuple[int, int], ...] = ()
    largest: float = 0.0
    ties: Literal["even", "away"] = "even"
    own_bias: int | None = None

    @property
    def bits(self) -> int:
        """Bits one element takes in memory (tfloat32 is stored in 32)."""
        return self.storage_bits or 1 + self.exponent_bits + self.mantissa_bits

    @property
    def operands_only(self) -> bool:
        """Whether products take it but their results are not kept in it: tfloat32, and 8 bits."""
        return bool(self.storage_bits) or self.bits < 16

    @property
    def bias(self) -> int:
        if self.own_bias is not None:
            return self.own_bias
        return int(2 ** (self.exponent_bits - 1)) - 1

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; of a tapered format, with a mantissa."""
        with_mantissa = [exponent for exponent, bits in self.taper if bits]
        return -with_mantissa[-1] if with_mantissa else 1 - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number."""
        if self.largest:
            return math.frexp(self.largest)[1] - 1
        top = int(2**self.exponent_bits) - 1 - self.bias
        return top - 1 if self.specials == "ieee" else top

    @property
    def max(self) -> float:
        """Largest finite number."""
        if self.largest:
            return self.largest
        codes = int(2**self.mantissa_bits)
        last = codes - 2 if self.specials == "nan" else codes - 1
        return (1.0 + last / codes) * 2.0**self.max_exponent

    @property
    def min_normal(self) -> float:
        return 2.0**self.min_exponent

    @property
    def min_subnormal(self) -> float:
        if self.taper:
            return 2.0 ** -self.taper[-1][0]
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    def quantum_exponent(self, exponent: int) -> int:
        """Return the exponent of the distance between the numbers of a binade."""
        for farthest, bits in self.taper:
            if abs(exponent) <= farthest:
                return exponent - bits
        lowest = -self.taper[-1][0] if self.taper else self.min_exponent
        return max(exponent, lowest) - (0 if self.taper else self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.mantissa_bits


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("float32", 8, 23),
        Format("tfloat32", 8, 10, storage_bits=32),
        Format("float16", 5, 10),
        Format("bfloat16", 8, 7),
        Format("float8_e4m3fn", 4, 3, "nan"),
        Format("float8_e5m2", 5, 2),
        Format("float6_e2m3fn", 2, 3, "none"),
        Format("float6_e3m2fn", 3, 2, "none"),
        Format("float4_e2m1fn", 2, 1, "none"),
        Format("int8", 1, 6, "none", own_bias=-5),
        Format("hifloat8", 5, 3, "ieee", 8, ((3, 3), (7, 2), (15, 1), (22, 0)), 32768.0, "away"),
    )
}

UINT16 = Format("uint16", 1, 15, "none", storage_bits=16, own_bias=-14)
"""What 16 bits of a number are kept in beside the others; nothing is computed in it."""

_CUSTOM = re.compile(r"e([2-8])m([1-9]|1[0-9]|2[0-3])(fn)?")


def format_named(name: str) -> Format:
    """Return the row called `name`, or the user-defined format it spells.

    `e5m7` is 5 exponent and 7 mantissa bits with IEEE specials, `e5m7fn` the same with one NaN
    code and no infinity; the spelling is the definition, so no table has to travel with it.
    Raises InputError for anything else, and for a format with numbers that float32 has not.
    """
    if isinstance(name, str):
        if name in FORMATS or name == UINT16.name:
            return FORMATS.get(name, UINT16)
        if spelled := _CUSTOM.fullmatch(name):
            own = Format(name, int(spelled[1]), int(spelled[2]), "nan" if spelled[3] else "ieee")
            check_fits_float32(own)
            return own
    valid = ", ".join(FORMATS)
    raise InputError(
        f"unknown format {name!r}; expected one of {valid}, or e<2-8>m<1-23>[fn] for your own"
        f"{near_miss(name, FORMATS)}"
    )


def check_fits_float32(fmt: Format) -> None:
    """Raise InputError unless every number of `fmt` is one of float32."""
    exponent, mantissa = fmt.exponent_bits, fmt.mantissa_bits
    if not (1 <= exponent <= 8 and 1 <= mantissa <= 23):
        raise InputError(
            f"format {fmt.name}: {exponent} exponent and {mantissa} mantissa bits; "
            "expected 2 to 8 and 1 to 23"
        )
    if exponent == 8 and fmt.specials != "ieee":
        raise InputError(
            f"format {fmt.name}: largest number {fmt.max:g} exceeds float32; "
            "expected at most 7 exponent bits, or IEEE specials"
        )


RoundingMode = Literal["nearest_even", "toward_zero", "nearest_away", "stochastic"]


@dataclass(frozen=True)
class Rounding:
    """How a real value becomes one of a format.

    `overflow`: "inf" gives infinity, or NaN where the format has none; "saturate" gives the
    largest finite number, also for infinity. NaN stays NaN in every format, so that divergence
    is seen. `subnormals`: "keep", or "flush" to a zero of the same sign.
    """

    mode: RoundingMode = "nearest_even"
    overflow: Literal["inf", "saturate"] = "inf"
    subnormals: Literal["keep", "flush"] = "keep"
