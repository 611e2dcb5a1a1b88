"""Rounding onto every format against ml_dtypes, numpy and float64; numpy against the extension."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.formats import FORMATS, Format, Rounding, format_named
from policysearch.rounding import rounder as rounding_module
from policysearch.rounding.grid import KEY_SPAN, MODES, SPAN, FloatArray
from policysearch.rounding.rounder import Fast, fast_ways, quantise, rounder
from policysearch.values import InputError
from tests.rounding_oracle import (
    ALL,
    EXACT_ROUNDINGS,
    FASTS,
    ROUNDINGS,
    WAYS,
    boundaries,
    by_float64,
    by_library,
    by_table,
    floats,
    library_type,
    mismatches,
    name_of,
    random_bits,
)
from tests.turns import turns

KNOWN = tuple(fmt for fmt in FORMATS.values() if library_type(fmt) is not None)
SMALL = tuple(fmt for fmt in ALL if fmt.exponent_bits + fmt.mantissa_bits < 16)
NEAREST = Rounding()


def rounded(
    x: FloatArray,
    fmt: Format,
    rounding: Rounding = NEAREST,
    fast: Fast = "off",
    seed: int = 0,
    counter: int = 0,
) -> FloatArray:
    out = np.empty_like(x)
    rounder(fmt, rounding, seed=seed, fast=fast)(x, out, counter)
    return out


@pytest.mark.parametrize(
    ("fmt", "rounding", "fast"), turns(ALL, EXACT_ROUNDINGS, FASTS), ids=name_of
)
def test_numbers_ties_and_their_neighbours(fmt: Format, rounding: Rounding, fast: Fast) -> None:
    x = np.concatenate((boundaries(fmt, 4000), random_bits(20_000)))
    given = x.copy()
    # Blocks that reach infinity, the end of the range, and neither take different paths.
    with np.errstate(invalid="ignore"):
        size = np.abs(x).astype(np.float64)
    parts = (x, x[size < 8 * fmt.max], x[size < fmt.max / 4])
    for part in parts:
        got = rounded(part, fmt, rounding, fast)
        assert mismatches(got, by_float64(part, fmt, rounding)) == 0
    assert np.array_equal(x.view(np.uint32), given.view(np.uint32))


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "nearest_away"])
@pytest.mark.parametrize("fmt", SMALL, ids=name_of)
def test_brute_force_over_all_numbers(fmt: Format, mode: str, fast: Fast) -> None:
    x = np.concatenate((boundaries(fmt), random_bits(200_000)))
    with np.errstate(invalid="ignore"):
        x = x[np.abs(x) <= fmt.max]
    got = rounded(x, fmt, Rounding(mode), fast)  # type: ignore[arg-type]
    assert mismatches(got, by_table(x, fmt, mode)) == 0


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("fmt", KNOWN, ids=name_of)
def test_nearest_even_is_that_of_the_libraries(fmt: Format, fast: Fast) -> None:
    every = np.arange(2**16, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        halves = every.astype(np.uint16).view(np.float16).astype(np.float32)
    x = np.concatenate((floats(every << 16), halves, boundaries(fmt), random_bits(1_000_000)))
    assert mismatches(rounded(x, fmt, NEAREST, fast), by_library(x, fmt)) == 0


@pytest.mark.parametrize(("fmt", "mode", "way"), turns(ALL, MODES, WAYS), ids=name_of)
def test_fast_ways_give_the_bits_of_the_reference(
    fmt: Format, mode: str, way: tuple[str, str]
) -> None:
    rounding = Rounding(mode, *way)  # type: ignore[arg-type]
    normal = np.random.default_rng(3).standard_normal(SPAN).astype(np.float32)
    x = np.concatenate((normal, normal * np.float32(fmt.min_normal), random_bits(2 * SPAN + 77)))
    reference = rounded(x, fmt, rounding, "off", seed=7, counter=2**63 + 5)
    for fast in fast_ways():
        twin = rounded(x, fmt, rounding, fast, seed=7, counter=2**63 + 5)
        assert np.array_equal(reference.view(np.uint32), twin.view(np.uint32)), fast


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize(
    ("name", "mode", "overflow", "x", "expected"),
    [
        ("float16", "nearest_even", "inf", 65519.996, 65504.0),
        ("float16", "nearest_even", "inf", -65520.0, -np.inf),
        ("float16", "nearest_even", "saturate", -np.inf, -65504.0),
        ("float16", "toward_zero", "inf", 1e30, 65504.0),
        ("float16", "toward_zero", "inf", np.inf, np.inf),
        ("float8_e4m3fn", "nearest_even", "inf", 464.0, 448.0),
        ("float8_e4m3fn", "nearest_even", "inf", 464.00003, np.nan),
        ("float8_e4m3fn", "nearest_away", "inf", 464.0, np.nan),
        ("float8_e4m3fn", "toward_zero", "inf", np.inf, np.nan),
        ("float8_e4m3fn", "toward_zero", "inf", 1e9, 448.0),
        ("float8_e4m3fn", "nearest_even", "saturate", np.inf, 448.0),
        ("float4_e2m1fn", "nearest_even", "inf", -np.inf, -6.0),
        ("float4_e2m1fn", "stochastic", "inf", 100.0, 6.0),
        ("float6_e3m2fn", "nearest_even", "saturate", np.nan, np.nan),
        ("bfloat16", "nearest_even", "inf", 3.4e38, np.inf),
        ("bfloat16", "toward_zero", "inf", 3.4e38, 3.3895314e38),
        ("bfloat16", "stochastic", "saturate", 3.4e38, 3.3895314e38),
        ("float32", "nearest_even", "saturate", np.inf, np.inf),
    ],
)
def test_overflow(
    name: str, mode: str, overflow: str, x: float, expected: float, fast: Fast
) -> None:
    rounding = Rounding(mode, overflow)  # type: ignore[arg-type]
    got = rounded(np.array([x], np.float32), format_named(name), rounding, fast)
    assert mismatches(got, np.array([expected], np.float32)) == 0


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("fmt", ALL, ids=name_of)
def test_stochastic_rounding_is_unbiased(fmt: Format, fast: Fast) -> None:
    count = 200_000
    step = fmt.min_subnormal
    below_max = fmt.max * (1 - 0.3 * fmt.epsilon / 2)
    points = (1.3 * step, -0.7 * step, 0.01 * step, 1 + 0.3 * fmt.epsilon, below_max)
    for number, point in enumerate(points):
        x = np.full(count, point, np.float32)
        got = rounded(x, fmt, Rounding("stochastic"), fast, seed=5, counter=number)
        values = np.unique(got)
        assert values.size <= 2
        assert np.array_equal(values, rounded(values, fmt))
        error = got.mean(dtype=np.float64) - np.float64(x[0])
        assert abs(error) <= 3 * got.std(dtype=np.float64) / np.sqrt(count)


def test_stochastic_draws_are_uncorrelated() -> None:
    x = np.full(2 * KEY_SPAN, 1.5, np.float32)
    fmt = Format("integers", 7, 1, "none")
    x += np.float32(0.25)
    runs = np.stack(
        [
            rounded(x, fmt, Rounding("stochastic"), seed=seed, counter=counter)
            for seed, counter in ((0, 0), (0, 1), (1, 0), (1, 1), (-1, 2**40))
        ]
    )
    shifted = np.stack([runs[0], *(np.roll(runs[0], lag) for lag in (1, 2, 64, 4096, KEY_SPAN))])
    for rows in (runs, shifted):
        off_diagonal = np.corrcoef(rows) - np.eye(len(rows))
        assert np.abs(off_diagonal).max() < 4 / np.sqrt(x.size)


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", ["float16", "tfloat32"])
def test_stochastic_result_depends_on_seed_counter_and_place_alone(name: str, fast: Fast) -> None:
    x = np.random.default_rng(0).standard_normal(2 * KEY_SPAN + 9).astype(np.float32)
    own = rounder(format_named(name), Rounding("stochastic"), seed=3, fast=fast)
    first, again, short, other = (np.empty_like(x) for _ in range(4))
    own(x, first, 1)
    own(x, other, 2)
    own(x[: KEY_SPAN + 5], short[: KEY_SPAN + 5], 1)
    own(x, again, 1)
    assert np.array_equal(first, again)
    assert np.array_equal(first[: KEY_SPAN + 5], short[: KEY_SPAN + 5])
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("fmt", "rounding", "fast"),
    turns(ALL, [r for r in ROUNDINGS if r.mode == "stochastic"], FASTS),
    ids=name_of,
)
def test_a_bound_draw_gives_the_same_bits(fmt: Format, rounding: Rounding, fast: Fast) -> None:
    normal = np.random.default_rng(3).standard_normal(KEY_SPAN + 77).astype(np.float32)
    tiny = normal * np.float32(fmt.min_normal)
    own = rounder(fmt, rounding, seed=7, fast=fast)
    for x in (normal, tiny, random_bits(2 * KEY_SPAN), normal[:5], normal[:0]):
        expected, got = np.empty_like(x), np.empty_like(x)
        call = own.bind_drawn(x, got)
        for counter in (0, 2**63 + 5):
            own(x, expected, counter)
            with np.errstate(all="ignore"):
                call(counter)
            assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=name_of)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "bfloat16", "float32"])
def test_in_place(name: str, rounding: Rounding, fast: Fast) -> None:
    x = random_bits(SPAN + 300)
    fmt = format_named(name)
    expected = rounded(x, fmt, rounding, fast)
    rounder(fmt, rounding, fast=fast)(x, x)
    assert np.array_equal(x.view(np.uint32), expected.view(np.uint32))


def test_quantise_takes_any_shape_and_leaves_its_input() -> None:
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32))
    given = x.copy()
    got = quantise(x, FORMATS["float8_e5m2"])
    assert got.shape == x.shape
    assert mismatches(got.ravel(), by_library(x.ravel(), FORMATS["float8_e5m2"])) == 0
    assert np.array_equal(x, given)
    assert quantise(np.full((), 1.1, np.float32), FORMATS["float16"]).shape == ()
    assert quantise(np.empty((0, 3), np.float32), FORMATS["float16"]).shape == (0, 3)


@pytest.mark.parametrize("fast", FASTS)
def test_mistakes_name_the_place(fast: Fast, monkeypatch: pytest.MonkeyPatch) -> None:
    own = rounder(FORMATS["float16"], fast=fast)
    good = np.zeros(8, np.float32)
    for bad in (np.zeros(9, np.float32), np.zeros(16, np.float32)[::2], np.zeros(8, np.int32)):
        with pytest.raises(InputError, match="rounding, out: "):
            own(good, bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"format e8m7fn: .* exceeds float32"):
        rounder(format_named("e8m7fn"))
    with pytest.raises(InputError, match=r"rounding\.mode: 'up'; expected one of nearest_even"):
        rounder(FORMATS["float16"], Rounding("up"))  # type: ignore[arg-type]
    monkeypatch.setattr(rounding_module, "_rounding", None)
    assert "c" not in fast_ways()
    with pytest.raises(InputError, match="fast: 'slow'; expected one of c, numpy, off"):
        rounder(FORMATS["float16"], fast="slow")
    with pytest.raises(InputError, match="fast: 'c', which is not built; expected one of "):
        rounder(FORMATS["float16"], fast="c")
