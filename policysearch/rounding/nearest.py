"""Rounding a span to nearest even in numpy, in as few passes as it takes, all views made before.

Spans that hold a number near the largest or beyond it, or a NaN, are left to the call `otherwise`.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable

import numpy as np

from policysearch.rounding.grid import INF, FloatArray, Grid, UintArray

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

    raising = contextvars.copy_context()  # entering `np.errstate` takes as long as a short pass
    raising.run(np.seterr, all="raise")

    def split_off() -> None:
        np.multiply(x, down, product)
        np.multiply(x, split, product)
        np.subtract(product, x, rest)

    def wide() -> None:
        try:
            raising.run(split_off)
        except FloatingPointError:
            otherwise()
            return
        np.subtract(product, rest, out)

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
    power: UintArray,
    raised: tuple[UintArray, UintArray],
    otherwise: Call,
) -> Call:
    """Return the call that rounds onto a format with fewer exponents, `power` its work buffer.

    `raised` holds all of that buffer, at least, in the shape in which it is raised to the second
    array, which is `grid.lowest` all over. The quantum is scaled to 1 by a power of two, the number
    rounded to an integer, which keeps the sign of a zero, and divided by the power again.
    """
    (powers, lowest), bits = raised, x.view(np.uint32)
    factor, top = power.view(np.float32), grid.max & INF
    # As operands, arrays of no dimension are faster than numbers.
    infinite, scale = (np.array(f, np.uint32) for f in (INF, grid.scale))

    def narrow() -> None:
        np.bitwise_and(bits, infinite, power)
        np.maximum(powers, lowest, out=powers)
        if power.item(power.argmax()) >= top:  # a small array's maximum.reduce takes longer
            otherwise()
            return
        np.subtract(scale, power, power)
        np.multiply(x, factor, out)
        np.rint(out, out)
        np.divide(out, factor, out)  # exact, and faster than to make the inverse and multiply

    return narrow
