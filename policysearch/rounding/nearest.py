"""Rounding a span to nearest even in numpy, in as few passes as it takes, all views made before.

Spans that hold a number near the largest or beyond it, or a NaN, are left to the call `otherwise`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from policysearch.rounding.grid import INF, SIGN, FloatArray, Grid, UintArray

_PUSH = 0x0BC00000  # exponent bits of 2^23, and the half: makes a number 1.5 * 2^23 times as large

Call = Callable[[], object]


def bind_wide(
    grid: Grid,
    x: FloatArray,
    out: FloatArray,
    work: tuple[UintArray, UintArray],
    otherwise: Call,
) -> Call | None:
    """Return the call that rounds onto a format with float32's exponent range; None if it cannot.

    It splits off the upper bits as Dekker (Numer. Math. 18, 1971) does after Veltkamp. Ties go to
    even, as the tests show for every significand and count of dropped bits. What would go wrong
    raises a floating-point exception before `out` is written: a subnormal number off the grid
    underflows in the first product, a number near the largest overflows in the second, and an
    infinity minus itself is invalid.
    """
    if not (grid.shift and _exceptions_seen()):
        return None
    product, rest = (buffer.view(np.float32) for buffer in work)
    # As operands, arrays of no dimension are faster than numbers.
    down, split = (np.array(f, np.float32) for f in (2.0**-grid.shift, 1 + 2.0**grid.shift))

    def wide() -> None:
        try:
            with np.errstate(all="raise"):
                np.multiply(x, down, out=product)
                np.multiply(x, split, out=product)
                np.subtract(product, x, out=rest)
        except FloatingPointError:
            otherwise()
            return
        np.subtract(product, rest, out=out)

    return wide


@functools.cache
def _exceptions_seen() -> bool:
    """Whether numpy reports here that a subnormal number underflows."""
    values = np.full(67, 2.0**-140, np.float32)
    try:
        with np.errstate(all="raise"):
            np.multiply(values, np.float32(2.0**-16), out=values)
    except FloatingPointError:
        return True
    return False


def bind_narrow(
    grid: Grid,
    x: FloatArray,
    out: FloatArray,
    work: tuple[UintArray, UintArray, UintArray],
    otherwise: Call,
) -> Call:
    """Return the call that rounds onto a format with fewer exponents; `work[2]` is `grid.lowest`.

    Adding and subtracting a large number rounds as float32 does, but for the sign of a zero, which
    is put back. With few dropped bits the quantum is scaled to 1, and the result back.
    """
    (power, signs, lowest), bits, result = work, x.view(np.uint32), out.view(np.uint32)
    unit, top = power.view(np.float32), grid.max & INF
    constants = (INF, SIGN, grid.scale, (_PUSH - grid.mantissa) & 0xFFFFFFFF)
    infinite, sign, scale, push = (np.array(value, np.uint32) for value in constants)
    exact = grid.shift >= 2  # the sum has 22 bits below its leading one

    def narrow() -> None:
        np.bitwise_and(bits, infinite, out=power)
        np.maximum(power, lowest, out=power)
        if np.maximum.reduce(power) >= top:
            otherwise()
        elif exact:
            np.bitwise_and(bits, sign, out=signs)
            np.add(power, push, out=power)
            np.add(x, unit, out=out)
            np.subtract(out, unit, out=out)
            np.bitwise_or(result, signs, out=result)
        else:
            np.subtract(scale, power, out=power)
            np.multiply(x, unit, out=out)
            np.rint(out, out=out)
            np.divide(out, unit, out=out)

    return narrow
