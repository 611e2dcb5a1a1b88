"""Bound calls that round to nearest even: the short cuts against the plain call, and the update."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.formats import FORMATS, Format, Rounding, format_named
from policysearch.rounding import nearest
from policysearch.rounding.grid import BLOCK, FloatArray
from policysearch.rounding.nearest import Known
from policysearch.rounding.rounder import quantise, rounder
from policysearch.values import InputError
from tests.rounding_oracle import (
    ALL,
    BACKENDS,
    EXACT_ROUNDINGS,
    boundaries,
    floats,
    name_of,
    random_bits,
)


def _samples(fmt: Format) -> list[FloatArray]:
    """Blocks that take every way: inside the range, at its ends, beyond, and mixed."""
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(BLOCK + 77).astype(np.float32)
    with np.errstate(over="ignore"):
        tiny, huge = normal * np.float32(fmt.min_normal), normal * np.float32(fmt.max)
        wide = np.ldexp(normal, rng.integers(-160, 120, normal.size)).astype(np.float32)
    apart = normal + np.copysign(np.float32(0.5), normal)  # nothing rounds to zero
    rare = apart.copy()
    rare[1000:1003] = floats(np.array([1, 0x80000001, 0x80000000]))
    full = np.concatenate((boundaries(fmt, 4000), random_bits(BLOCK)))
    return [normal, tiny, huge, wide, apart, rare, full, normal[:5], normal[:0]]


@pytest.mark.parametrize("compiled", BACKENDS)
@pytest.mark.parametrize("rounding", EXACT_ROUNDINGS, ids=name_of)
@pytest.mark.parametrize("fmt", ALL, ids=name_of)
def test_a_bound_call_gives_the_same_bits(fmt: Format, rounding: Rounding, compiled: bool) -> None:
    plain, own = (rounder(fmt, rounding, compiled=way) for way in (False, compiled))
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


@pytest.mark.parametrize("fmt", ALL, ids=name_of)
def test_without_signs_of_zeros_all_other_bits_are_the_same(fmt: Format) -> None:
    own = rounder(fmt, compiled=False)
    for x in _samples(fmt):
        expected, got = np.empty_like(x), np.empty_like(x)
        own(x, expected)
        with np.errstate(all="ignore"):
            own.bind(x, got, Known(zero_signs=False))()
        expected[expected == 0], got[got == 0] = 0, 0
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", ["bfloat16", "tfloat32", "e8m1", "e8m22"])
def test_numbers_known_not_to_be_tiny_are_rounded_alike(name: str) -> None:
    own = rounder(format_named(name), compiled=False)
    for x in _samples(format_named(name)):
        large = np.where(np.abs(x) < 2.0**-104, np.copysign(np.float32(0), x), x)
        expected, got = np.empty_like(x), np.empty_like(x)
        own(large, expected)
        with np.errstate(all="ignore"):
            own.bind(large, got, Known(tiny=False))()
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_without_floating_point_exceptions_wide_formats_take_the_plain_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert nearest._exceptions_seen()
    monkeypatch.setattr(nearest, "_exceptions_seen", lambda: False)
    x = floats(np.array([1, 0x00018000, 0x80008000, 0x3F818000]))
    got = np.empty_like(x)
    with np.errstate(all="ignore"):
        rounder(FORMATS["bfloat16"], compiled=False).bind(x, got)()
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
        rounder(format_named(f"e8m{mantissa}"), compiled=False).bind(x, got)()
    assert np.array_equal(got.view(np.uint32), expected)


@pytest.mark.parametrize("compiled", BACKENDS)
@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "bfloat16", "tfloat32", "float32"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("size", [1, 5001, 2 * BLOCK + 77])
def test_momentum_update(size: int, momentum: float, name: str, compiled: bool) -> None:
    rng = np.random.default_rng(size)
    param, velocity, grad = (rng.standard_normal(size).astype(np.float32) for _ in range(3))
    grad *= np.exp2(rng.uniform(-40, 10, size)).astype(np.float32)
    grad[::7], velocity[::3] = -0.0, 0.0
    given, rate = grad.copy(), np.full(1, 0.1, np.float32)
    rounded_grad = quantise(grad, FORMATS[name])
    new_velocity: FloatArray = velocity * np.float32(momentum) + rounded_grad
    new_param: FloatArray = param - new_velocity * rate
    update = rounder(FORMATS[name], compiled=compiled).bind_sgd(
        param, velocity, grad, momentum, rate
    )
    with np.errstate(all="ignore"):
        update()
    assert np.array_equal(velocity.view(np.uint32), new_velocity.view(np.uint32))
    assert np.array_equal(param.view(np.uint32), new_param.view(np.uint32))
    assert np.array_equal(grad, given)


@pytest.mark.parametrize("compiled", BACKENDS)
def test_momentum_update_mistakes(compiled: bool) -> None:
    a, short, rate = np.zeros(8, np.float32), np.zeros(7, np.float32), np.ones(1, np.float32)
    with pytest.raises(InputError, match="rounding, grad: "):
        rounder(FORMATS["float16"], compiled=compiled).bind_sgd(a, a.copy(), short, 0.9, rate)
