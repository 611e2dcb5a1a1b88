"""What holds for rounding onto any format in any mode, searched for counterexamples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from policysearch.formats import Format, Rounding
from policysearch.rounding.grid import MODES, FloatArray, UintArray
from policysearch.rounding.rounder import rounder
from tests.rounding_oracle import ALL, WAYS, floats, name_of, quantum
from tests.turns import turns

SIZE = 64
BITS = arrays(np.uint32, SIZE, elements=st.integers(0, 2**32 - 1))
SEEDS = st.integers(-(2**63), 2**64 - 1)


def near(bits: UintArray, fmt: Format) -> FloatArray:
    """Half of the values drawn to the range of the format, where its numbers are."""
    x = floats(bits).copy()
    exponent = bits[::2] % np.uint32(fmt.max_exponent - fmt.min_exponent + fmt.mantissa_bits + 6)
    field = np.clip(
        exponent.astype(np.int64) + fmt.min_exponent - fmt.mantissa_bits - 2 + 127, 0, 254
    )
    x[::2] = floats((bits[::2] & np.uint32(0x807FFFFF)) | (field.astype(np.uint32) << 23))
    return x


def order(x: FloatArray, given: FloatArray) -> FloatArray:
    """`x` with the NaN that stands for overflow as an infinity, so that it can be compared."""
    overflowed = np.isnan(x) & ~np.isnan(given)
    return np.where(overflowed, np.copysign(np.float32(np.inf), given), x)


@pytest.mark.parametrize(("fmt", "mode", "way"), turns(ALL, MODES, WAYS), ids=name_of)
def test_properties(fmt: Format, mode: str, way: tuple[str, str]) -> None:
    """Every mode on every format, overflow and subnormals in turn."""
    rounding = Rounding(mode, *way)  # type: ignore[arg-type]

    @settings(max_examples=6)
    @given(BITS, BITS, SEEDS, SEEDS)
    def holds(bits: UintArray, more: UintArray, seed: int, counter: int) -> None:
        own = rounder(fmt, rounding, seed=seed, fast="off")

        def of(x: FloatArray) -> FloatArray:
            out = np.empty_like(x)
            own(x, out, counter)
            return out

        x, y = near(bits, fmt), near(more, fmt)
        got = of(x)
        assert np.array_equal(np.isnan(x), np.isnan(order(got, x)))
        assert np.array_equal(np.signbit(got), np.signbit(x))
        assert np.array_equal(of(-x).view(np.uint32), (-got).view(np.uint32))
        again = of(got)
        assert np.array_equal(again, got, equal_nan=True)
        low, high = np.minimum(x, y), np.maximum(x, y)
        numbers = ~np.isnan(low)
        assert np.all(order(of(low), low)[numbers] <= order(of(high), high)[numbers])
        check_bracket(x, got, fmt, rounding)

    holds()


def check_bracket(x: FloatArray, got: FloatArray, fmt: Format, rounding: Rounding) -> None:
    """Every finite result is one of the two numbers next to its input, and the nearer or lower."""
    inside = np.isfinite(x) & np.isfinite(got) & (np.abs(x) <= fmt.max)
    size, result = np.abs(x[inside]).astype(np.float64), np.abs(got[inside]).astype(np.float64)
    step = quantum(x[inside], fmt)
    below, above = np.floor(size / step) * step, np.ceil(size / step) * step
    if rounding.subnormals == "flush":
        below = np.where(below < fmt.min_normal, 0.0, below)
        above = np.where(above < fmt.min_normal, 0.0, above)
        assert not np.any((result > 0) & (result < fmt.min_normal))
    assert np.all((result == below) | (result == above))
    if rounding.mode == "toward_zero":
        assert np.all(result == below)
    elif rounding.mode != "stochastic" and rounding.subnormals == "keep":
        assert np.all(np.abs(result - size) <= step / 2)
