"""Scaling ops against plain numpy, torch, ml_dtypes and gfloat: amax, scales, casts, blocks."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Op
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.source import data

SATURATE = Rounding(overflow="saturate")
SHAPES = [(7,), (5, 70), (70, 5), (3, 4, 6), (2, 33, 4, 3)]


def run(op: str, *inputs: Any, attrs: dict[str, Any] | None = None, **fields: Any) -> FloatArray:
    b = Builder()
    arrays = [np.asarray(x, np.float32) for x in inputs]
    ids = [
        b.emit(data, attrs={"shape": x.shape}, role="input", name=str(i))
        for i, x in enumerate(arrays)
    ]
    executable = compile_graph(b.graph({"y": b.emit(OPS[op], *ids, attrs=attrs, **fields)}))
    for i, x in enumerate(arrays):
        executable.arrays[str(i)][...] = x
    executable.forward_backward()
    return executable.value("y").copy()


def spread(shape: tuple[int, ...], seed: int = 0) -> FloatArray:
    """Values over many binades, so that blocks and rows differ in their amax."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 9, shape)).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_amax_is_the_largest_magnitude(shape: tuple[int, ...]) -> None:
    x = spread(shape)
    assert run("amax", x) == np.abs(x).max()
    assert run("amax", -np.abs(x)) == np.abs(x).max()
    assert np.isnan(run("amax", np.where(x == x.flat[3], np.nan, x)))
    for axes in [(0,), tuple(range(len(shape)))[1:]]:
        if axes:
            expected = np.abs(x).max(axis=axes, keepdims=True)
            np.testing.assert_array_equal(run("amax", x, attrs={"axes": axes}), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 4, 32])
def test_amax_of_blocks_with_a_short_last_one(shape: tuple[int, ...], block: int) -> None:
    x = spread(shape)
    for axis, extent in enumerate(shape):
        parts = np.split(np.abs(x), range(block, extent, block), axis=axis)
        expected = np.concatenate([p.max(axis=axis, keepdims=True) for p in parts], axis=axis)
        found = run("amax", x, attrs={"axes": (axis,), "block": block})
        np.testing.assert_array_equal(found, expected)


def test_amax_of_zeros_is_a_positive_zero() -> None:
    """A negative zero as a scale would turn into a negative infinite factor."""
    for attrs in ({}, {"axes": (1,)}, {"axes": (1,), "block": 2}):
        assert not np.signbit(run("amax", -np.zeros((2, 4)), attrs=attrs)).any()


@pytest.mark.parametrize(
    ("amax", "margin", "power_of_two", "scale"),
    [
        (448.0, 0, False, 1.0),
        (3.0, 0, False, np.float32(448) / np.float32(3)),
        (3.0, 2, False, np.float32(448) / np.float32(3) / 4),
        (3.0, 0, True, 128.0),
        (448.0, 0, True, 1.0),
        (3.5, 0, True, 128.0),
        (0.0, 0, False, 1.0),
        (math.inf, 0, False, 1.0),
        (math.nan, 3, False, 1.0),
        (1e-38, 0, False, np.finfo(np.float32).max),
        (1e-38, 0, True, 2.0**127),
    ],
)
def test_tensor_scale(amax: float, margin: int, power_of_two: bool, scale: float) -> None:
    attrs = {"maximum": 448.0, "margin": margin, "power_of_two": power_of_two}
    assert run("tensor_scale", amax, attrs=attrs) == np.float32(scale)
    np.testing.assert_array_equal(run("tensor_scale", [[amax], [7.0]], attrs=attrs)[0], [scale])


@pytest.mark.parametrize(
    ("amax", "scale"),
    [(448.0, 1.0), (3.0, np.float32(3) * np.float32(1 / 448)), (0.0, 1.0), (1e-17, 1.0)],
)
def test_a_scale_that_divides(amax: float, scale: float) -> None:
    attrs = {"maximum": 448.0, "margin": 0, "divides": True}
    assert run("tensor_scale", amax, attrs=attrs) == np.float32(scale)
    assert np.isnan(run("tensor_scale", math.nan, attrs=attrs))
    assert run("tensor_scale", amax, attrs={**attrs, "margin": 2}) in (scale * 4, 1.0)


@pytest.mark.parametrize(
    ("rule", "history", "old", "scale"),
    [
        ("max", [2.0, 8.0, 0.0], 5.0, 448 / 8),
        ("most_recent", [2.0, 8.0, 0.0], 5.0, 448 / 2),
        ("most_recent", [0.0, 8.0, 1.0], 5.0, 5.0),
        ("max", [0.0, 0.0, 0.0], 0.0, 1.0),
        ("max", [0.0, math.inf, 1.0], 5.0, 5.0),
        # as `fmaxf` has it, which passes over NaN
        ("max", [1.0, math.nan, 2.0], 5.0, 448 / 2),
        ("max", [math.nan, math.nan, math.nan], 5.0, 5.0),
        ("most_recent", [math.nan, 8.0, 1.0], 5.0, 5.0),
        ("max", [1e-38, 0.0, 0.0], 5.0, np.finfo(np.float32).max),
    ],
)
def test_delayed_scale(rule: str, history: list[float], old: float, scale: float) -> None:
    attrs = {"maximum": 448.0, "amax": rule}
    assert run("delayed_scale", history, old, attrs=attrs) == np.float32(scale)


def test_history_takes_the_newest_amax_in_front() -> None:
    assert run("amax_history", [3.0, 2.0, 1.0], 4.0).tolist() == [4.0, 3.0, 2.0]
    assert run("amax_history", [3.0], 4.0).tolist() == [4.0]
    # `if (last_amax != 0)`: a zero is not rolled in, so that it drives no amax out
    assert run("amax_history", [3.0, 2.0, 1.0], 0.0).tolist() == [3.0, 2.0, 1.0]
    assert np.isnan(run("amax_history", [3.0, 2.0], math.nan)).tolist() == [True, False]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_current_scaling_equals_a_torch_cast(name: str) -> None:
    """torch: x * (max / amax), clamped to the largest finite number, cast."""
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    x = spread((33, 50), 1)
    scale = run("tensor_scale", np.abs(x).max(), attrs={"maximum": format_named(name).max})
    found = run("scaled_cast", x, scale, format=name, rounding=SATURATE)
    given, limit = torch.from_numpy(x), torch.finfo(dtype).max
    factor = (limit / given.abs().max().double()).float()
    expected = (given * factor).clamp(-limit, limit).to(dtype).float().numpy()
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found).max() == limit


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
def test_scaled_cast_saturates_and_equals_ml_dtypes(name: str) -> None:
    row, x = format_named(name), spread((40, 40), 2)
    found = run("scaled_cast", x, 300.0, format=name, rounding=SATURATE)
    clipped = np.clip(x * np.float32(300.0), -row.max, row.max)
    expected = clipped.astype(getattr(ml_dtypes, name)).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert (np.abs(x * 300.0) > row.max).any()


def mx(x: FloatArray, name: str, axis: int) -> tuple[FloatArray, FloatArray]:
    """Return (elements, scales) of MX along `axis`, one block at a time, as section 6.3 reads."""
    row, moved = format_named(name), np.moveaxis(x, axis, -1)
    elements, scales = np.empty_like(moved), []
    for at in np.ndindex(moved.shape[:-1]):
        for first in range(0, moved.shape[-1], 32):
            part = moved[at][first : first + 32].astype(np.float64)
            largest = np.abs(part).max()
            shared = math.floor(math.log2(largest)) - row.max_exponent if largest else -127
            scale = 2.0 ** max(shared, -127)
            clipped = np.clip(part / scale, -row.max, row.max).astype(np.float32)
            elements[at][first : first + 32] = clipped.astype(getattr(ml_dtypes, name))
            scales.append(scale)
    shaped = np.array(scales, np.float32).reshape(*moved.shape[:-1], -1)
    return np.moveaxis(elements, -1, axis), np.moveaxis(shaped, -1, axis)


MX_FORMATS = ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"]


@pytest.mark.parametrize("name", MX_FORMATS)
@pytest.mark.parametrize(("shape", "axis"), [((5, 70), 1), ((70, 5), 0), ((2, 33, 4, 3), 1)])
def test_mx_is_that_of_the_specification(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = spread(shape, 3)
    x.swapaxes(0, axis)[:32] = 0.0
    elements, scales = mx(x, name, axis)
    largest = run("amax", x, attrs={"axes": (axis,), "block": 32})
    emax = format_named(name).max_exponent
    found = run("mx_scale", largest, attrs={"emax": emax}, format="e8m1")
    np.testing.assert_array_equal(found, scales)
    along = {"axis": axis, "block": 32}
    cast = run("block_cast", x, found, attrs=along, format=name, rounding=SATURATE)
    np.testing.assert_array_equal(cast, elements)


@pytest.mark.parametrize("name", MX_FORMATS)
def test_mx_equals_gfloat(name: str) -> None:
    gfloat = pytest.importorskip("gfloat")
    formats = pytest.importorskip("gfloat.formats")
    theirs = name.removeprefix("float").removesuffix("fn")
    info = getattr(formats, f"format_info_mxfp{theirs}")
    x = spread((8, 32), 4)
    largest = run("amax", x, attrs={"axes": (1,), "block": 32})
    scales = run("mx_scale", largest, attrs={"emax": format_named(name).max_exponent})
    along = {"axis": 1, "block": 32}
    cast = run("block_cast", x, scales, attrs=along, format=name, rounding=SATURATE)
    for row, found in zip(x, cast * scales, strict=True):
        expected = gfloat.quantize_block(info, row.astype(np.float64), gfloat.compute_scale_amax)
        np.testing.assert_array_equal(found, expected)


def test_mx_scale_stays_within_e8m0_and_shows_what_is_not_finite() -> None:
    given = [[0.0, 1e-44, 1.1e-38, 1.2e-38, 3e38, math.inf, math.nan]]
    found = run("mx_scale", given, attrs={"emax": 0}, format="e8m1")
    assert found[0, :5].tolist() == [2.0**-127, 2.0**-127, 2.0**-127, 2.0**-126, 2.0**127]
    assert np.isnan(found[0, 5:]).all()
    assert run("mx_scale", given, attrs={"emax": 8})[0, 3] == np.float32(2.0**-127)


def e8m0_of_transformer_engine(amax: float, maximum: float) -> int:
    """The stated formula, `float_to_e8m0(amax * (1 / maximum))`, one number at a time."""
    with np.errstate(invalid="ignore"):  # bit patterns of signalling NaNs are among them
        value = np.float32(amax) * np.float32(1.0 / maximum)
    if np.isnan(value):
        return 255
    if np.isinf(value):
        return 254
    if value == 0:
        return 0
    bits = int(value.view(np.uint32))
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    up = mantissa > 0 and exponent != 254 and not (exponent == 0 and mantissa <= 0x400000)
    return exponent + up


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_mx_rceil_is_transformer_engines_rule_on_every_bfloat16(name: str) -> None:
    maximum = format_named(name).max
    bits = np.arange(2**16, dtype=np.uint32) << 16
    amax = np.abs(bits.view(np.float32))
    given = amax.reshape(256, 256)
    found = run("mx_rceil_scale", given, attrs={"maximum": maximum}, format="e8m1").ravel()
    codes = [e8m0_of_transformer_engine(value, maximum) for value in amax]
    assert len(set(codes)) > 240
    expected = [math.nan if code == 255 else 2.0 ** (code - 127) for code in codes]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def nvfp4(x: FloatArray) -> tuple[FloatArray, FloatArray, np.float32]:
    """Return (elements, block scales, tensor scale) of a matrix, one block at a time."""
    tensor = np.float32(448 * 6) / np.abs(x).max()
    elements, scales = np.empty_like(x), np.empty((len(x), -(-x.shape[1] // 16)), np.float32)
    for i, j in np.ndindex(scales.shape):
        part = x[i, 16 * j : 16 * j + 16]
        wanted = min(np.abs(part).max() * (tensor * (1 / np.float32(6))), np.float32(448))
        scales[i, j] = np.float32(ml_dtypes.float8_e4m3fn(wanted))
        with np.errstate(all="ignore"):
            factor = min(1 / (scales[i, j] * (1 / tensor)), np.finfo(np.float32).max)
            clipped = np.clip(part * factor, -6, 6)
        elements[i, 16 * j : 16 * j + 16] = clipped.astype(ml_dtypes.float4_e2m1fn)
    return elements, scales, tensor


def test_nvfp4_equals_a_loop_over_blocks() -> None:
    x = spread((6, 50), 5)
    x[0, :16], x[1, :16] = 0.0, 1e-9
    elements, scales, tensor = nvfp4(x)
    largest = run("amax", x, attrs={"axes": (1,), "block": 16})
    found = run(
        "nvfp4_scale",
        largest,
        tensor,
        attrs={"maximum": 6.0},
        format="float8_e4m3fn",
        rounding=SATURATE,
    )
    np.testing.assert_array_equal(found, scales)
    along = {"axis": 1, "block": 16}
    fields: dict[str, Any] = {"format": "float4_e2m1fn", "rounding": SATURATE}
    cast = run("block_cast", x, found, tensor, attrs=along, **fields)
    np.testing.assert_array_equal(cast, elements)


def test_descale_lines_scales_up_with_the_result() -> None:
    y, rows, columns = spread((3, 5)), spread((3, 1), 1), spread((1, 5), 2)
    one = np.float32(1.0)
    expected = y * (one / rows) * (one / columns)
    for swap, given in (((False, False), columns), ((False, True), columns.T)):
        found = run("descale", y, rows, given, attrs={"axes": (0, 1), "swap": swap})
        np.testing.assert_array_equal(found, expected)
    found = run("descale", y, 3.0, 7.0, attrs={"axes": (0, 1)})
    np.testing.assert_array_equal(found, y * ((one / np.float32(3)) * (one / np.float32(7))))


BLOCK_OPS = [op for op in OPS.values() if op.name.endswith("_blocks")]


@pytest.mark.parametrize("op", [op for op in BLOCK_OPS if op.example], ids=lambda op: op.name)
def test_products_over_blocks_scale_back_before_the_sum(op: Op) -> None:
    assert op.example is not None
    example = op.example(np.random.default_rng(6))
    left, right, scales = example.inputs
    ((position, axis, block),) = example.attrs["blocks"]
    assert position == 0
    whole = np.take(np.repeat(scales, block, axis), range(left.shape[axis]), axis)
    attrs = {key: value for key, value in example.attrs.items() if key != "blocks"}
    plain = run(op.name.removesuffix("_blocks"), left * whole, right, attrs=attrs)
    found = run(op.name, left, right, scales, attrs=dict(example.attrs))
    np.testing.assert_array_equal(found, plain)
