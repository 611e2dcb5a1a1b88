"""Which formats hold all values of others."""

from __future__ import annotations

import math
from collections.abc import Iterable

from policysearch.formats import FORMATS, Format


def contains(wide: Format, narrow: Format) -> bool:
    """Whether every finite value of `narrow` is a value of `wide`."""
    lowest = math.frexp(narrow.min_subnormal)[1] - 1
    binades = range(lowest, narrow.max_exponent + 1) if wide.taper else ()
    return (
        wide.mantissa_bits >= narrow.mantissa_bits
        and all(wide.quantum_exponent(e) <= narrow.quantum_exponent(e) for e in binades)
        and wide.max >= narrow.max
        and wide.min_subnormal <= narrow.min_subnormal
    )


def join(formats: Iterable[Format]) -> Format:
    """Return the narrowest row that holds every value of all `formats`.

    float16 with bfloat16 gives float32; where two rows tie in bits, the one with more mantissa
    (float8_e4m3fn with float8_e5m2 gives float16).
    """
    given = set(formats)
    rows = given | set(FORMATS.values())
    holding = [row for row in rows if all(contains(row, item) for item in given)]
    return min(holding, key=lambda row: (row.bits, -row.mantissa_bits, row not in given, row.name))
