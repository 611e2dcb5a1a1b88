"""Bound calls that round to nearest even: the short cuts against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.formats import FORMATS, Format, Rounding, format_named
from policysearch.rounding import nearest
from policysearch.rounding.grid import SPAN, FloatArray
from policysearch.rounding.rounder import Fast, rounder
from tests.rounding_oracle import (
    ALL,
    EXACT_ROUNDINGS,
    FASTS,
    boundaries,
    floats,
    name_of,
    random_bits,
)
from tests.turns import turns

BOUND = [row for row in EXACT_ROUNDINGS if row.mode == "nearest_even" or row == Rounding(row.mode)]
"""To nearest even in all ways, and the other modes, which have no short cut, in one."""


def _samples(fmt: Format) -> list[FloatArray]:
    """Blocks that take every way: inside the range, at its ends, beyond, and mixed."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(SPAN + 77).astype(np.float32)
    with np.errstate(over="ignore"):
        tiny, huge = normal * np.float32(fmt.min_normal), normal * np.float32(fmt.max)
        wide = np.ldexp(normal, rng.integers(-160, 120, normal.size)).astype(np.float32)
    apart = normal + np.copysign(np.float32(0.5), normal)  # nothing rounds to zero
    rare = apart.copy()
    rare[1000:1003] = floats(np.array([1, 0x80000001, 0x80000000]))
    full = np.concatenate((boundaries(fmt, 4000), random_bits(SPAN)))
    return [normal, tiny, huge, wide, apart, rare, full, normal[:5], normal[:0]]


@pytest.mark.parametrize(("fmt", "rounding", "fast"), turns(ALL, BOUND, FASTS), ids=name_of)
def test_a_bound_call_gives_the_same_bits(fmt: Format, rounding: Rounding, fast: Fast) -> None:
    plain, own = rounder(fmt, rounding, fast="off"), rounder(fmt, rounding, fast=fast)
    for x in _samples(fmt):
        expected, got, given = np.empty_like(x), np.empty_like(x), x.copy()
        plain(x, expected)
        with np.errstate(all="ignore"):
            call = own.bind(x, got)
            call()
            call()
            own.bind(given, given)()
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))
        assert np.array_equal(given.view(np.uint32), expected.view(np.uint32))


def test_without_floating_point_exceptions_wide_formats_take_the_plain_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert nearest._exceptions_seen()
    monkeypatch.setattr(nearest, "_exceptions_seen", lambda: False)
    x = floats(np.array([1, 0x00018000, 0x80008000, 0x3F818000]))
    got = np.empty_like(x)
    with np.errstate(all="ignore"):
        rounder(FORMATS["bfloat16"], fast="numpy").bind(x, got)()
    assert got.view(np.uint32).tolist() == [0, 0x20000, 0x80000000, 0x3F820000]


@pytest.mark.slow
@pytest.mark.parametrize("mantissa", range(1, 23))
def test_splitting_takes_every_significand_to_nearest_even(mantissa: int) -> None:
    shift = 23 - mantissa
    bits = np.arange(127 << 23, 128 << 23, dtype=np.uint32)
    unit = np.uint32(1 << shift)
    odd = (bits >> np.uint32(shift)) & np.uint32(1)
    expected = (bits + (unit >> np.uint32(1)) - np.uint32(1) + odd) & np.uint32(
        -(1 << shift) & 0xFFFFFFFF
    )
    x = bits.view(np.float32)
    got = np.empty_like(x)
    with np.errstate(all="ignore"):
        rounder(format_named(f"e8m{mantissa}"), fast="numpy").bind(x, got)()
    assert np.array_equal(got.view(np.uint32), expected)
