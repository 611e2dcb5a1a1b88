"""The quantiser on torch tensors against the reference, bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from policysearch.formats import FORMATS, Rounding, format_named
from policysearch.graph import FloatArray
from policysearch.rounding.grid import KEY_SPAN, MODES, grid_of, mix64, span_key
from policysearch.rounding.rounder import rounder
from tests.torch_place import PLACE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NAMES = (*FORMATS, "e5m7", "e5m7fn", "e8m13", "e2m1")
"""All there are, and own ones with other specials, a wide one and a narrow one."""

SIXTEEN = 1 << 16


def _bits(x: FloatArray) -> Any:
    """Return the bits, one pattern for every NaN of a sign."""
    return x.view(np.uint32)


def _inputs(more: int) -> FloatArray:
    """Return every float32 with 16 low zero bits, every float16, `more` of any and of near one."""
    rng = np.random.default_rng(0)
    high = (np.arange(SIXTEEN, dtype=np.uint32) << 16).view(np.float32)
    half = np.arange(SIXTEEN, dtype=np.uint16).view(np.float16).astype(np.float32)
    every = rng.integers(0, 2**32, more, dtype=np.uint32).view(np.float32)
    near = rng.standard_normal(more) * np.exp2(rng.integers(-30, 30, more))
    return np.concatenate([high, half, every, near.astype(np.float32)])


def _both(
    x: FloatArray, name: str, rounding: Rounding, seed: int = 5, counter: int = 77
) -> tuple[FloatArray, FloatArray]:
    from policysearch.rounding.torch_bits import keys_of, rounded

    expected = np.empty_like(x)
    rounder(format_named(name), rounding, seed=seed)(x, expected, counter)
    grid = grid_of(format_named(name), rounding)
    keys = keys_of(x.size, seed, counter).to(PLACE)
    return rounded(grid, torch.from_numpy(x).to(PLACE), keys).cpu().numpy(), expected


@pytest.mark.parametrize("name", NAMES)
def test_bits_are_those_of_the_emulator(name: str) -> None:
    x = _inputs(500_000)
    for overflow in ("inf", "saturate"):
        got, expected = _both(x, name, Rounding(overflow=overflow))
        assert np.array_equal(_bits(got), _bits(expected))
        moved = np.isfinite(x) & (expected != x)
        assert name == "float32" or np.count_nonzero(moved) > 100_000


@pytest.mark.parametrize("name", NAMES)
def test_every_mode_with_every_end(name: str) -> None:
    x = _inputs(2_000)
    modes = product(MODES, ("inf", "saturate"), ("keep", "flush"))
    for rounding in (Rounding(*each) for each in modes):  # type: ignore[arg-type]
        got, expected = _both(x, name, rounding)
        assert np.array_equal(_bits(got), _bits(expected)), rounding


def test_draws_are_those_of_seed_counter_and_element_over_several_spans() -> None:
    x = np.full(2 * KEY_SPAN + 5, 1.001, np.float32)
    by_chance = Rounding("stochastic")
    first, expected = _both(x, "bfloat16", by_chance)
    assert np.array_equal(first, expected) and len(set(first.tolist())) == 2
    for others in ({"seed": 6}, {"counter": 78}):
        other, expected = _both(x, "bfloat16", by_chance, **others)
        assert np.array_equal(other, expected) and not np.array_equal(other, first)


def test_keys_of_all_spans_are_those_of_each() -> None:
    from policysearch.rounding.torch_bits import keys_of

    counter = 2**63 + 12345
    every = keys_of(5 * KEY_SPAN - 1, 2**64 - 3, counter).numpy().view(np.uint32)
    expected = [span_key(mix64(2**64 - 3), counter, span) for span in range(5)]
    assert every.tolist() == [list(key) for key in expected]


def test_a_tensor_is_rounded_as_it_lies_in_memory() -> None:
    from policysearch.rounding.torch_bits import rounded

    grid = grid_of(format_named("float8_e4m3fn"), Rounding())
    x = torch.randn(6, 5, 4, device=PLACE)
    for view in (x.permute(2, 0, 1), x[:, ::2], x[:, :1].expand(6, 5, 4)):
        found = rounded(grid, view)
        assert torch.equal(found, rounded(grid, view.contiguous()))
    assert rounded(grid, x.permute(2, 0, 1)).stride() == x.permute(2, 0, 1).stride()
