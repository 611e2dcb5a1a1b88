"""Tensor-core sums against a definition in fractions, MMA-Sim's output and published probes."""

from __future__ import annotations

import contextlib
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysearch.accumulators import ACCUMULATORS
from policysearch.formats import FORMATS, Format, format_named
from policysearch.products.product import compiled_available, product
from policysearch.products.tensor_cores import PROMOTION, TensorCore, tensor_core
from policysearch.rounding.rounder import Fast, fast_ways, quantise
from policysearch.values import InputError
from tests.rounding_oracle import FASTS
from tests.turns import case, turns

Array = npt.NDArray[np.float32]

NEEDS_BUILD = pytest.mark.skipif(not compiled_available(), reason="the extension is not built")
ROWS = tuple(row for row in ACCUMULATORS.values() if row.kind == "tensor_core")


def _settled(name: str, left: Format, right: Format) -> TensorCore | None:
    row = ACCUMULATORS[name]
    with contextlib.suppress(InputError):
        return tensor_core(row.architecture, left, right, result=row.result, promote=row.promote)
    return None


# Every row with every operand it takes, and the mixed 8-bit products.
CASES = tuple(
    (row.name, left.name, right.name)
    for row in ROWS
    for left in FORMATS.values()
    for right in FORMATS.values()
    if _settled(row.name, left, right) is not None
)
UNIFORM = tuple(case for case in CASES if case[1] == case[2])

# Group size and fraction bits as published; float8 sums of Ada and Hopper end in e8m13.
PUBLISHED = {
    ("v100", "float16"): (4, 23, "float32"),
    ("a100", "float16"): (8, 24, "float32"),
    ("ada", "tfloat32"): (4, 24, "float32"),
    ("ada", "float8_e4m3fn"): (16, 13, "e8m13"),
    ("h100", "bfloat16"): (16, 25, "float32"),
    ("h100", "tfloat32"): (8, 25, "float32"),
    ("h100", "float8_e4m3fn"): (32, 13, "e8m13"),
    ("b200", "float8_e5m2"): (32, 25, "float32"),
}


@pytest.mark.parametrize(("architecture", "operand"), PUBLISHED)
def test_parameters_are_the_published_ones(architecture: str, operand: str) -> None:
    fmt = format_named(operand)
    found = tensor_core(architecture, fmt, fmt)
    given_row = (found.group, found.fraction_bits, found.result.name)
    assert given_row == PUBLISHED[architecture, operand]


def _exponent(x: Fraction, lowest: int) -> int:
    if x == 0:
        return -126
    size = abs(x)
    found = size.numerator.bit_length() - size.denominator.bit_length()
    found -= size < Fraction(2) ** found
    return max(found, lowest)


def _onto(x: Fraction, fmt: Format, nearest: bool) -> Fraction | float:
    exponent = max(_exponent(x, fmt.min_exponent), fmt.min_exponent)
    quantum = Fraction(2) ** (exponent - fmt.mantissa_bits)
    steps = round(x / quantum) if nearest else math.trunc(x / quantum)
    found = steps * quantum
    if abs(found) >= Fraction(2) ** (fmt.max_exponent + 1):
        return math.copysign(math.inf, found)
    return found


def _group(pairs: list[tuple[float, float]], c: float, unit: TensorCore) -> float:
    """One group by the definition, in fractions."""
    special = {x for x in (*(a * b for a, b in pairs), c) if not math.isfinite(x)}
    if special:
        return special.pop() if special in ({math.inf}, {-math.inf}) else math.nan
    exponents = [_exponent(Fraction(c), unit.result.min_exponent)]
    for a, b in pairs:
        left = _exponent(Fraction(a), unit.left_min_exponent)
        exponents.append(left + _exponent(Fraction(b), unit.right_min_exponent))
    step = Fraction(2) ** (max(exponents) - unit.fraction_bits)
    terms = [Fraction(c), *(Fraction(a) * Fraction(b) for a, b in pairs)]
    total = sum(math.trunc(term / step) for term in terms) * step
    return float(_onto(total, unit.result, unit.result.name == "float16"))


def _element(left: Array, right: Array, unit: TensorCore) -> float:
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    step = PROMOTION if unit.promote else len(pairs)
    total = np.float32(0)
    for start in range(0, len(pairs), step):
        c = 0.0
        for first in range(start, min(start + step, len(pairs)), unit.group):
            c = _group(pairs[first : first + unit.group], c, unit)
        total = np.float32(total + np.float32(c))
    return float(total)


def _by_definition(left: Array, right: Array, unit: TensorCore) -> Array:
    columns = right.T
    return np.array([[_element(row, column, unit) for column in columns] for row in left], "f4")


def _sample(kind: str, shape: tuple[int, int], fmt: Format, rng: np.random.Generator) -> Array:
    if kind == "normal":
        x = rng.standard_normal(shape)
    elif kind == "spread":  # exponents over all the format has, subnormals included
        low, high = fmt.min_exponent - fmt.mantissa_bits, fmt.max_exponent
        x = np.ldexp(rng.uniform(-2, 2, shape), rng.integers(low, high, shape))
    elif kind == "tiny":
        x = rng.standard_normal(shape) * fmt.min_normal
    elif kind == "largest":  # sums that need every carry bit, and overflow
        x = fmt.max * rng.choice([1.0, 1.0, 1.0, -1.0, 0.0], shape)
    else:
        x = rng.standard_normal(shape)
        special = (np.inf, -np.inf, np.nan) if fmt.specials == "ieee" else (np.nan,)
        for value in special if fmt.specials != "none" else ():
            x[rng.random(shape) < 0.01] = value
    return quantise(x.astype(np.float32), fmt)


def _matmul(case: tuple[str, str, str], left: Array, right: Array, fast: Fast) -> Array:
    name, *operands = case
    formats = (format_named(operands[0]), format_named(operands[1]))
    out = np.full((*left.shape[:-1], right.shape[-1]), 7.0, np.float32)
    product(ACCUMULATORS[name], formats, fast=fast)(left, right, out=out)
    return out


def _bits(x: Array) -> list[int]:
    found: list[int] = np.ascontiguousarray(x).view(np.uint32).ravel().tolist()
    return found


KINDS = ("normal", "spread", "tiny", "largest", "special")


@pytest.mark.parametrize("names", CASES, ids="-".join)
def test_equals_the_definition(names: tuple[str, str, str]) -> None:
    """Operands of every kind; the ways to run it take turns."""
    ways, turn = fast_ways(), CASES.index(names)
    for place, kind in enumerate(KINDS, turn):
        with case(kind):
            assert_by_definition(names, kind, ways[place % len(ways)])


def assert_by_definition(case: tuple[str, str, str], kind: str, fast: Fast) -> None:
    rng = np.random.default_rng(len(case[0]) + KINDS.index(kind))
    left, right = format_named(case[1]), format_named(case[2])
    depth = 141 if case[0].endswith("promote128") else 41
    a, b = _sample(kind, (2, depth), left, rng), _sample(kind, (depth, 2), right, rng)
    unit = _settled(case[0], left, right)
    assert unit is not None
    with np.errstate(all="ignore"):
        expected = _by_definition(a, b, unit)
    assert _bits(_matmul(case, a, b, fast)) == _bits(expected)


SHAPES = ((1, 1, 1), (5, 300, 37), (3, 128, 64), (515, 20, 3))


@pytest.mark.parametrize(("case", "kind", "shape"), turns(UNIFORM, KINDS, SHAPES))
def test_every_vector_size_gives_the_same_bits(
    case: tuple[str, str, str], kind: str, shape: tuple[int, int, int]
) -> None:
    extension = pytest.importorskip("policysearch.products._tensor_core")
    rng = np.random.default_rng(sum(shape))
    fmt = format_named(case[1])
    a, b = _sample(kind, shape[:2], fmt, rng), _sample(kind, shape[1:], fmt, rng)
    unit, expected = _settled(case[0], fmt, fmt), _bits(_matmul(case, a, b, "off"))
    assert unit is not None
    for vector_bytes in (16, 32, 64):
        out = np.empty((shape[0], shape[2]), np.float32)
        extension.matmul_into(a, b, out, unit.packed(), vector_bytes)
        assert _bits(out) == expected


@pytest.mark.skipif(not compiled_available(), reason="the extension is not built")
def test_the_extension_changes_range_between_blocks() -> None:
    """A panel leaves float32's range in its second packed block, and comes back in the third."""
    rng = np.random.default_rng(3)
    case = ("tensor_core.h100", "bfloat16", "bfloat16")
    scale = np.repeat(np.array([1, 2.0**-70, 1, 2.0**55], np.float32), 128)
    fmt = format_named("bfloat16")
    a = _sample("normal", (4, 512), fmt, rng) * scale
    b = _sample("normal", (512, 70), fmt, rng) * scale[:, None]
    b[:, 40:] *= np.float32(2.0**-60)
    assert _bits(_matmul(case, a, b, "c")) == _bits(_matmul(case, a, b, "off"))


def _integers(count: int, seed: int) -> npt.NDArray[np.int64]:
    """The high bits of a linear congruential generator."""
    found = [seed]
    for _ in range(count):
        found.append((found[-1] * 6364136223846793005 + 1442695040888963407) % 2**64)
    return np.array([state >> 40 for state in found[1:]])


def vector_operand(fmt: Format, shape: tuple[int, int], seed: int) -> Array:
    """Numbers of the format over eight binades, as tests/data/mma_sim.json was made from."""
    words = _integers(shape[0] * shape[1], seed).reshape(shape)
    top = 2 ** (fmt.mantissa_bits + 1)
    significand = words % (2 * top - 1) - top + 1
    found: Array = np.ldexp(significand / top, (words >> 12) % 8 - 3).astype(np.float32)
    return found


VECTORS = json.loads((Path(__file__).parent / "data" / "mma_sim.json").read_text("utf-8"))


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", VECTORS["sums"])
def test_equals_mma_sim(name: str, fast: Fast) -> None:
    row, operand = name.split()
    rows, depth, columns = VECTORS["shape"]
    fmt = format_named(operand)
    a, b = vector_operand(fmt, (rows, depth), 1), vector_operand(fmt, (depth, columns), 2)
    found = _matmul((row, operand, operand), a, b, fast)
    assert [f"{bits:08x}" for bits in _bits(found)] == VECTORS["sums"][name]


SCALED_SHAPE = (2, 160, 2)


def scaled_case(name: str, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    """Return operands and the scales of their blocks, as tests/data/mma_sim.json was made from."""
    left, right, scale, block = name.split()
    rows, depth, columns = SCALED_SHAPE
    blocks = depth // int(block)

    def operand(kind: str, shape: tuple[int, int], at: int) -> Array:
        fmt = format_named(kind)
        return quantise(vector_operand(fmt, shape, 10 * seed + at), fmt)

    def scales(shape: tuple[int, int], at: int) -> Array:
        if scale == "float8_e4m3fn":
            return np.maximum(np.abs(operand(scale, shape, at)), np.float32(2.0**-9))
        powers = _integers(shape[0] * shape[1], 10 * seed + at) % 13 - 6
        return np.ldexp(np.float32(1), powers).reshape(shape).astype(np.float32)

    operands = operand(left, (rows, depth), 1), operand(right, (depth, columns), 2)
    return (*operands, scales((rows, blocks), 3), scales((blocks, columns), 4))


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", VECTORS["scaled"])
def test_scales_of_blocks_equal_mma_sim(name: str, fast: Fast) -> None:
    """Kinds mxf8f6f4 and mxf4nvf4 of tcgen05.mma, by MMA-Sim's functions for them."""
    left, right, scale, block = name.split()
    a, b, of_a, of_b = scaled_case(name)
    spread = of_a.repeat(int(block), 1), of_b.repeat(int(block), 0)
    formats = format_named(left), format_named(right)
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    exact = product(ACCUMULATORS["tensor_core.b200"], formats, fast=fast, scale=format_named(scale))
    exact(a, b, out=out, scales=spread)
    assert [f"{bits:08x}" for bits in _bits(out)] == VECTORS["scaled"][name]


def _dot(name: str, operand: str, terms: list[tuple[float, float]], fast: Fast) -> float:
    a = np.array([[a for a, _ in terms]], np.float32)
    b = np.array([[b] for _, b in terms], np.float32)
    return float(_matmul((name, operand, operand), a, b, fast)[0, 0])


ONE = (1.0, 1.0)
PROBES = {
    # 2^-24 is below the last bit that V100 keeps beside 1; the others keep it and then truncate.
    "V100 drops": ("v100", "float16", [ONE] + [(2.0**-12, 2.0**-12)] * 3, 1.0),
    "A100 keeps": ("a100", "float16", [ONE] + [(2.0**-12, 2.0**-12)] * 7, 1 + 3 * 2.0**-23),
    "A100 drops": ("a100", "float16", [ONE] + [(2.0**-12, 2.0**-13)] * 7, 1.0),
    "H100 keeps": ("h100", "float16", [ONE] + [(2.0**-12, 2.0**-13)] * 15, 1 + 3 * 2.0**-23),
    "H100 drops": ("h100", "float16", [ONE] + [(2.0**-13, 2.0**-13)] * 15, 1.0),
    "order is free": ("a100", "float16", [(2.0**-12, 2.0**-12)] * 7 + [ONE], 1 + 3 * 2.0**-23),
    "toward zero": (
        "a100",
        "float16",
        [(-1.0, 1.0)] + [(-(2.0**-12), 2.0**-12)] * 7,
        -1 - 3 * 2.0**-23,
    ),
    # Alignment is to the exponent before 1.5 * 1.5 = 2.25 is normalised.
    "unnormalised": ("h100", "float16", [(1.5, 1.5)] + [(2.0**-12, 2.0**-13)] * 8, 2.25 + 2.0**-22),
    "2^24 on V100": ("v100", "float16", [(2.0**12, 2.0**12)] + [ONE] * 7, 2.0**24),
    "2^24 on H100": ("h100", "float16", [(2.0**12, 2.0**12)] + [ONE] * 15, 2.0**24 + 14),
    "subnormal sum": ("a100", "bfloat16", [(2.0**-133, 2.0**-10)] * 64, 2.0**-137),
    # 13 bits behind the leading one: 2^-13 survives beside 1 on Hopper, 2^-14 does not.
    "fp8 keeps": ("h100", "float8_e4m3fn", [ONE] + [(2.0**-6, 2.0**-7)] * 31, 1 + 31 * 2.0**-13),
    "fp8 drops": ("h100", "float8_e4m3fn", [ONE] + [(2.0**-7, 2.0**-7)] * 31, 1.0),
    "fp8 on B200": ("b200", "float8_e4m3fn", [ONE] + [(2.0**-7, 2.0**-7)] * 31, 1 + 31 * 2.0**-14),
    "fp16 result": ("h100:float16", "float16", [(2048.0, 1.0), ONE, ONE, ONE], 2052.0),
}


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", PROBES)
def test_published_probes(name: str, fast: Fast) -> None:
    """The kind of inputs by which Fasi et al. and their successors told the units apart."""
    row, operand, terms, expected = PROBES[name]
    assert _dot(f"tensor_core.{row}", operand, terms, fast) == expected


@pytest.mark.parametrize("fast", FASTS)
def test_promotion_keeps_what_fourteen_bits_lose(fast: Fast) -> None:
    terms = [ONE] * 2**14 + [(2.0**-6, 1.0)] * 128
    plain = _dot("tensor_core.h100", "float8_e4m3fn", terms, fast)
    promoted = _dot("tensor_core.h100:promote128", "float8_e4m3fn", terms, fast)
    assert (plain, promoted) == (2.0**14, 2.0**14 + 2)


@pytest.mark.parametrize("fast", FASTS)
@given(seed=st.integers(0, 2**32 - 1), shift=st.integers(-30, 30))
def test_symmetries(fast: Fast, seed: int, shift: int) -> None:
    """Order inside a group, operand order, sign and scale change nothing but sign and scale."""
    rng = np.random.default_rng(seed)
    case = ("tensor_core.a100", "bfloat16", "bfloat16")
    fmt = format_named("bfloat16")
    a, b = _sample("normal", (2, 8), fmt, rng), _sample("normal", (8, 3), fmt, rng)
    order = rng.permutation(8)
    scale = np.float32(2.0**shift)
    expected = _matmul(case, a, b, fast)
    assert _bits(_matmul(case, a[:, order], b[order], fast)) == _bits(expected)
    assert _bits(_matmul(case, b.T.copy(), a.T.copy(), fast)) == _bits(expected.T)
    assert _bits(_matmul(case, a * scale, b, fast)) == _bits(expected * scale)
    assert np.array_equal(_matmul(case, -a, b, fast), -expected)
