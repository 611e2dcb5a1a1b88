"""Rounding through fixed arrays, and all 2^32 float32 inputs onto every format (slow)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from policysearch.formats import FORMATS, Format, Rounding
from policysearch.rounding.grid import MODES, FloatArray
from policysearch.rounding.rounder import Fast, Rounder, fast_ways, rounder
from tests.rounding_oracle import (
    FASTS,
    by_float64,
    by_library,
    floats,
    library_type,
    mismatches,
    name_of,
)

NEAREST = Rounding()


def fixed(rounder: Rounder, x: FloatArray, out: FloatArray, mode: str) -> Callable[[int], object]:
    """Return the call of a counter that rounds x as training does: by the short cut, if any."""
    if mode == "stochastic":
        return rounder.bind_drawn(x, out)
    if mode == "nearest_even":
        call = rounder.bind(x, out)
        return lambda counter: call()
    return lambda counter: rounder(x, out, counter)


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=name_of)
def test_the_short_cut_of_fixed_arrays_gives_the_same_bits(
    fmt: Format, fast: Fast, overflow: str
) -> None:
    """On ordinary values, on values around the format's range, and on every kind of bits."""
    rng = np.random.default_rng(5)
    ordinary = rng.standard_normal(40_000).astype(np.float32)
    wide = ordinary * np.float32(2.0) ** rng.integers(-30, 20, ordinary.size).astype(np.float32)
    bits = floats(rng.integers(0, 2**32, 40_000, dtype=np.uint32))
    around = ordinary * np.float32(fmt.max) if fmt.max < 1e30 else ordinary
    tiny = ordinary * np.float32(fmt.min_normal)
    rounding = Rounding("nearest_even", overflow)  # type: ignore[arg-type]
    own = rounder(fmt, rounding, fast=fast)
    for x in (ordinary, wide, bits, around, tiny, -np.abs(tiny), np.zeros(9, np.float32)):
        expected, got = np.empty_like(x), np.empty_like(x)
        own(x, expected)
        with np.errstate(all="ignore"):
            fixed(own, x, got, "nearest_even")(0)
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def sweep(
    fmt: Format, rounding: Rounding, config: pytest.Config, chunk: int = 2**18
) -> dict[Fast, int]:
    """Round all 2^32 float32; return the mismatches of each backend.

    A line per backend (format, mode, backend, inputs, mismatches, seconds) goes to
    .pytest_cache/d/exactness. The stochastic mode is compared with the other backend, bit by bit.
    """
    # two ways are enough: what the short cuts leave, the reference does
    names = fast_ways()[:2]
    own = {name: rounder(fmt, rounding, fast=name) for name in names}
    got = {name: np.empty(chunk, np.float32) for name in names}
    wrong: dict[Fast, int] = dict.fromkeys(names, 0)
    begun = time.process_time()
    low, x = np.arange(chunk, dtype=np.uint32), np.empty(chunk, np.float32)
    calls = {name: fixed(own[name], x, got[name], rounding.mode) for name in names}
    for start in range(0, 2**32, chunk):
        np.add(low, np.uint32(start), out=x.view(np.uint32))
        for name in names:
            with np.errstate(all="ignore"):
                calls[name](start)
        if rounding.mode == "stochastic":
            differ = got[names[0]].view(np.uint32) != got[names[1]].view(np.uint32)
            wrong[names[0]] += int(np.count_nonzero(differ))
            continue
        library = rounding == NEAREST and library_type(fmt) is not None
        expected = by_library(x, fmt) if library else by_float64(x, fmt, rounding)
        for name in names:
            wrong[name] += mismatches(got[name], expected)
    seconds = time.process_time() - begun
    folder = Path(config.cache.mkdir("exactness")) if config.cache else Path()
    for name in names[: 1 if rounding.mode == "stochastic" else 2]:
        cells = (fmt.name, rounding.mode, name, 2**32, wrong[name], f"{seconds:.0f}")
        line = "\t".join(map(str, cells))
        (folder / f"{fmt.name}-{rounding.mode}-{name}.tsv").write_text(line + "\n")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=name_of)
@pytest.mark.parametrize("mode", MODES)
def test_every_float32(fmt: Format, mode: str, pytestconfig: pytest.Config) -> None:
    if mode == "stochastic" and len(fast_ways()) < 2:
        pytest.skip("there is only one way to round")
    wrong = sweep(fmt, Rounding(mode), pytestconfig)  # type: ignore[arg-type]
    assert not any(wrong.values())
