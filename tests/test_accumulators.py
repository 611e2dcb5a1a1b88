"""The accumulators by name, and the products of each against plain loops."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from policysearch.accumulators import (
    ACCUMULATORS,
    Accumulator,
    accumulator_named,
)
from policysearch.formats import FORMATS, Format, format_named
from policysearch.products.product import MatrixUnits, product
from policysearch.rounding.rounder import Fast, quantise
from policysearch.study.specification import spec_from_text
from policysearch.values import InputError
from tests.rounding_oracle import FASTS

Array = npt.NDArray[np.float32]

SPELLED = (
    "chunked:1:float16",
    "chunked:32:float16",
    "chunked:16:bfloat16",
    "chunked:128:float32",
    "chunked:32:e8m13:toward_zero",
    "chunked:8:float16:nearest_away",
)
ALL = (*ACCUMULATORS, *SPELLED)


def _operand(row: Accumulator) -> Format:
    """A format that every row takes: float16."""
    product(row, FORMATS["float16"])
    return FORMATS["float16"]


def _numbers(shape: tuple[int, ...], fmt: Format, seed: int = 0) -> Array:
    x = np.random.default_rng(seed).standard_normal(shape)
    return quantise(x.astype(np.float32), fmt)


def _run(name: str, left: Array, right: Array, fast: Fast | None = None) -> Array:
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    out = np.full((*lead, left.shape[-2], right.shape[-1]), np.nan, np.float32)
    row = accumulator_named(name)
    product(row, _operand(row), fast=fast)(left, right, out=out)
    return out


def _same(found: Array, expected: Array) -> bool:
    return np.array_equal(found.view(np.uint32), expected.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("name", ALL)
def test_every_row_says_what_it_leaves_out(name: str) -> None:
    row = accumulator_named(name)
    assert row.name == name
    assert len(row.not_modelled) > 20


def test_a_spelled_accumulator_means_what_it_says() -> None:
    row = accumulator_named("chunked:32:e8m13:toward_zero")
    assert (row.kind, row.length, row.result, row.rounding.mode) == (
        "chunked",
        32,
        "e8m13",
        "toward_zero",
    )
    assert accumulator_named("chunked:32:e8m13").rounding.mode == "nearest_even"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("float17", "unknown accumulator 'float17'; expected one of float32, float16, tensor_core"),
        ("chunked:0:float16", "unknown accumulator"),
        ("chunked:32", "unknown accumulator"),
        ("chunked:32:float17", "unknown format 'float17'"),
        ("chunked:32:float16:up", "rounding mode: 'up'; expected one of nearest_even"),
        ("chunked:32:float16:stochastic", "rounding mode: 'stochastic'; expected one of"),
        ("chunked:32:e8m10fn", "e8m10fn"),
        ("tensor_core.p100", "unknown accumulator"),
    ],
)
def test_a_wrong_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        accumulator_named(name)


@pytest.mark.parametrize(
    ("name", "left", "right", "message"),
    [
        ("tensor_core.v100", "float8_e4m3fn", "", "'float8_e4m3fn'; expected one of float16$"),
        ("tensor_core.a100", "float8_e5m2", "", "expected one of float16, bfloat16, tfloat32$"),
        ("tensor_core.h100", "float32", "", "operand 'float32'; expected one of float16"),
        ("tensor_core.h100", "float4_e2m1fn", "", "operand 'float4_e2m1fn'"),
        ("tensor_core.h100:float16", "bfloat16", "", "operand 'bfloat16'; expected one of float16"),
        ("tensor_core.h100", "float16", "bfloat16", "expected one format, or two 8-bit"),
        ("tensor_core.h100", "float16", "float8_e5m2", "expected one format, or two 8-bit"),
    ],
)
def test_an_operand_the_unit_lacks_is_refused(
    name: str, left: str, right: str, message: str
) -> None:
    pair = (format_named(left), format_named(right or left))
    with pytest.raises(InputError, match=message):
        product(ACCUMULATORS[name], pair)


def test_matrix_units_take_what_sixteen_bits_hold_and_run_on_no_cpu() -> None:
    units = accumulator_named("matrix_units")
    held = {"float8_e4m3fn": "float16", "float8_e5m2": "float16", "bfloat16": "bfloat16"}
    for name, expected in held.items():
        made = product(units, format_named(name))
        assert isinstance(made, MatrixUnits) and made.operands == expected
    mixed = product(units, (format_named("float8_e4m3fn"), format_named("bfloat16")))
    assert isinstance(mixed, MatrixUnits) and mixed.operands == "bfloat16"
    for pair in (("tfloat32", "tfloat32"), ("float16", "bfloat16"), ("float32", "float16")):
        with pytest.raises(InputError, match="expected two that float16 or bfloat16 holds"):
            product(units, (format_named(pair[0]), format_named(pair[1])))
    x = np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match="a step on a CPU"):
        product(units, format_named("float16"))(x, x, out=np.empty_like(x))


def test_a_study_with_matrix_units_says_where_it_runs() -> None:
    text = Path("studies/mlp-digits.toml").read_text()
    text = text.replace("[space]", '[space]\naccumulators = ["matrix_units"]')
    with pytest.raises(InputError, match=r"space.accumulators: 'matrix_units' on a CPU"):
        spec_from_text(text, "a study")
    there = text.replace("[study]", '[study]\nfast = "torch"\nplace = "cuda"')
    assert spec_from_text(there, "a study").space.accumulators == ("matrix_units",)


def test_float32_is_matmul_itself() -> None:
    assert product(ACCUMULATORS["float32"], FORMATS["float16"]) is np.matmul


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", ALL)
def test_strides_and_broadcasting_are_free(name: str, fast: Fast) -> None:
    fmt = FORMATS["float16"]
    # whole numbers, whose sums in float32 are the same in every order
    rng = np.random.default_rng(0)
    left, right = (
        rng.integers(-300, 301, shape).astype(np.float32) for shape in ((3, 1, 5, 40), (2, 40, 37))
    )
    plain = [[_run(name, a[0], b, fast) for b in right] for a in left]
    expected = np.array(plain, np.float32)
    assert _same(_run(name, left, right, fast), expected)
    reverse = right[:, ::-1, ::-1].copy()[:, ::-1, ::-1]
    transposed = left.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    spread = np.full((3, 2, 5, 80), np.nan, np.float32)[..., :74:2]
    row = accumulator_named(name)
    product(row, fmt, fast=fast)(transposed, reverse, out=spread)
    assert _same(np.ascontiguousarray(spread), expected)
    assert np.isnan(spread.base[..., 1::2]).all()  # type: ignore[index]


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", ALL)
def test_close_to_the_exact_product_where_sums_are_short(name: str, fast: Fast) -> None:
    fmt = FORMATS["float16"]
    left, right = _numbers((6, 20), fmt), _numbers((20, 33), fmt, 1)
    exact = left.astype(np.float64) @ right
    assert np.abs(_run(name, left, right, fast) - exact).max() < 0.1


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_products(name: str, shape: tuple[int, int, int], fast: Fast) -> None:
    m, k, n = shape
    found = _run(name, np.ones((m, k), np.float32), np.ones((k, n), np.float32), fast)
    assert np.array_equal(found, np.zeros((m, n)))


@pytest.mark.parametrize("name", [name for name in ALL if name != "float32"])
@pytest.mark.parametrize(
    ("left", "right", "out"),
    [((2, 3), (4, 5), (2, 5)), ((2, 3), (3, 5), (2, 4)), ((3,), (3, 5), (5,))],
)
def test_shapes_that_do_not_fit_are_refused(
    name: str, left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]
) -> None:
    call = product(accumulator_named(name), FORMATS["float16"])
    with pytest.raises(InputError, match="expected"):
        call(np.ones(left, np.float32), np.ones(right, np.float32), out=np.ones(out, np.float32))
    with pytest.raises(InputError, match="expected float32"):
        call(np.ones((2, 2)), np.ones((2, 2), np.float32), out=np.ones((2, 2), np.float32))


def _float16_chain(left: Array, right: Array) -> Array:
    """Each element by itself: one float64 fused multiply-add, one rounding, per product."""
    out = np.zeros((len(left), right.shape[1]), np.float16)
    for i, j in np.ndindex(out.shape):
        for a, b in zip(left[i].tolist(), right[:, j].tolist(), strict=True):
            out[i, j] = np.float64(out[i, j]) + a * b
    return out.astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 2.0**-12, 2.0**7])
def test_float16_rounds_after_every_product(scale: float) -> None:
    fmt = FORMATS["float16"]
    left = quantise(_numbers((3, 50), fmt) * np.float32(scale), fmt)
    right = quantise(_numbers((50, 4), fmt, 1) * np.float32(scale), fmt)
    found = _run("float16", left, right)
    with np.errstate(all="ignore"):
        assert _same(found, _float16_chain(left, right))
        assert not np.array_equal(found, (left @ right).astype(np.float16).astype(np.float32))


def test_float16_stops_growing_where_float16_does() -> None:
    ones = np.ones((1, 3000), np.float32)
    assert _run("float16", ones, ones.T)[0, 0] == 2048.0
    assert _run("chunked:2:float16", ones, ones.T)[0, 0] == 3000.0


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("length", [1, 7, 32])
@pytest.mark.parametrize("depth", [1, 32, 100])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_chunks_are_added_then_rounded(
    dtype: type[np.generic], length: int, depth: int, fast: Fast
) -> None:
    """Small whole numbers: every chunk is exact, so only the running sum is rounded."""
    rng = np.random.default_rng(depth + length)
    left = rng.integers(-9, 9, (4, depth)).astype(np.float32)
    right = rng.integers(-30, 99, (depth, 5)).astype(np.float32)
    expected = np.zeros((4, 5), np.float32)
    for first in range(0, depth, length):
        part = slice(first, first + length)
        expected += left[:, part] @ right[part]
        expected = expected.astype(dtype).astype(np.float32)
    found = _run(f"chunked:{length}:{np.dtype(dtype).name}", left, right, fast)
    assert np.array_equal(found, expected)


def test_chunks_truncate_where_asked() -> None:
    left, right = np.full((1, 64), 1.0, np.float32), np.ones((64, 1), np.float32)
    left[0, 32:] = 2.0**-9  # 32 of them add 2^-4 to a sum of 32: 2^-9 of it
    found = [
        _run(f"chunked:32:e8m{bits}:{mode}", left, right)[0, 0]
        for bits, mode in ((8, "toward_zero"), (8, "nearest_away"), (9, "toward_zero"))
    ]
    assert found == [32.0, 32.125, 32.0625]


def test_a_product_can_be_called_again_with_other_shapes() -> None:
    fmt = FORMATS["float16"]
    for name in ALL:
        call = product(accumulator_named(name), fmt)
        for shape in ((2, 40, 3), (70, 8, 33), (2, 40, 3)):
            left, right = _numbers(shape[:2], fmt), _numbers(shape[1:], fmt, 1)
            out = np.empty((shape[0], shape[2]), np.float32)
            call(left, right, out=out)
            assert _same(out, _run(name, left, right))
