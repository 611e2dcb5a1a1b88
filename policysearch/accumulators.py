"""How a matrix product accumulates, as rows.

Sources of the tensor-core rows: MMA-Sim (arXiv 2511.10909); Khattak and Mikaitis
(arXiv 2512.07004); Fasi et al., PeerJ CS 7:e330. Promotion every 128: DeepSeek-V3
(arXiv 2412.19437) section 3.3.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from policysearch.formats import Rounding, RoundingMode, check_fits_float32, format_named
from policysearch.values import InputError, near_miss, one_of

Kind = Literal["blas", "chunked", "sequential", "tensor_core", "matrix_units"]


@dataclass(frozen=True)
class Accumulator:
    """A summation order and precision for the products of one matmul or convolution.

    `result` is the format of the running sum ("" for a tensor core that has its own), `length`
    the products between two roundings of a chunked one.
    """

    name: str
    kind: Kind
    not_modelled: str
    result: str = "float32"
    length: int = 0
    rounding: Rounding = Rounding()
    architecture: str = ""
    promote: bool = False


HALF = ("float16", "bfloat16")
EIGHT = ("float8_e4m3fn", "float8_e5m2")
_SMALL = ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")


@dataclass(frozen=True)
class Unit:
    """How a tensor core sums products of the operand formats `operands`, as named in formats.

    `group` products are summed at once with `fraction_bits`; `result` is the format of the
    running sum: float32, or e8m13 (float32 with ten bits of the mantissa dropped). Of a group,
    `exact` products at a time are summed exactly first, and aligned by their scales alone.
    """

    operands: tuple[str, ...]
    group: int
    fraction_bits: int
    result: str = "float32"
    exact: int = 0


ARCHITECTURES: dict[str, tuple[Unit, ...]] = {
    "v100": (Unit(("float16",), 4, 23),),
    "a100": (Unit(HALF, 8, 24), Unit(("tfloat32",), 4, 24)),
    "ada": (Unit(HALF, 8, 24), Unit(("tfloat32",), 4, 24), Unit(EIGHT, 16, 13, "e8m13")),
    "h100": (Unit(HALF, 16, 25), Unit(("tfloat32",), 8, 25), Unit(EIGHT, 32, 13, "e8m13")),
    "b200": (Unit(HALF, 16, 25), Unit(("tfloat32",), 8, 25), Unit((*EIGHT, *_SMALL), 32, 25)),
}

BLOCK_SCALED: dict[str, tuple[Unit, ...]] = {
    "b200": (
        Unit(("float4_e2m1fn",), 64, 35, exact=16),
        Unit((*EIGHT, *_SMALL), 32, 25),
    )
}
"""Units that take a scale for every block of their operands: kinds mxf4nvf4 and mxf8f6f4."""

_BLAS = "no tensor core sums in this order: float32 BLAS, rounded once at the output"
_FLOAT16 = (
    "tensor cores sum in groups; this is a chain of float16 fused multiply-adds, "
    "rounded to nearest even after every product"
)
_CHUNKED = (
    "tensor cores align and truncate inside a group; here each chunk is summed by float32 BLAS "
    "and rounded once, a stress model that predicts no hardware's bits"
)
_TENSOR_CORE = (
    "the order in which a kernel visits tiles along the contraction (split-k, stream-k, other "
    "convolution algorithms) and its epilogue"
)


def _tensor_core_row(architecture: str, result: str = "", promote: bool = False) -> Accumulator:
    suffix = ":promote128" if promote else f":{result}" if result else ""
    return Accumulator(
        f"tensor_core.{architecture}{suffix}",
        "tensor_core",
        _TENSOR_CORE,
        result=result,
        architecture=architecture,
        promote=promote,
    )


ACCUMULATORS: dict[str, Accumulator] = {
    row.name: row
    for row in (
        Accumulator("float32", "blas", _BLAS),
        Accumulator("float16", "sequential", _FLOAT16, result="float16"),
        *(_tensor_core_row(architecture) for architecture in ARCHITECTURES),
        *(_tensor_core_row(architecture, "float16") for architecture in ARCHITECTURES),
        _tensor_core_row("h100", promote=True),
    )
}

MATRIX_UNITS = Accumulator(
    "matrix_units",
    "matrix_units",
    "the GPU of the run sums as it does, on units for operands of 16 bits: its bits are "
    "neither another device's nor, in 8 bits, those of its own 8-bit units",
)
"""What a step on torch's CUDA tensors may sum with; no emulator of a CPU has it."""

ROWS = (*ACCUMULATORS, MATRIX_UNITS.name)
"""The names of all that are no chunked accumulator."""

_CHUNK = re.compile(r"chunked:([1-9][0-9]{0,8}):([^:]+)(?::([^:]+))?")
_CHUNK_ROUNDINGS: dict[str, Rounding] = {
    mode: Rounding(mode) for mode in get_args(RoundingMode) if mode != "stochastic"
}


def accumulator_named(name: str) -> Accumulator:
    """Return the row called `name`, or the chunked accumulator it spells.

    `chunked:32:float16` sums 32 products in float32, adds them to the running sum and rounds that
    to float16; `chunked:32:e8m13:toward_zero` names a rounding mode other than nearest_even.
    Raises InputError for anything else.
    """
    if isinstance(name, str):
        if name in ACCUMULATORS:
            return ACCUMULATORS[name]
        if name == MATRIX_UNITS.name:
            return MATRIX_UNITS
        spelled = _CHUNK.fullmatch(name)
        if spelled:
            mode = spelled[3] or "nearest_even"
            rounding = _CHUNK_ROUNDINGS[one_of(f"{name}, rounding mode", mode, _CHUNK_ROUNDINGS)]
            check_fits_float32(format_named(spelled[2]))
            return Accumulator(name, "chunked", _CHUNKED, spelled[2], int(spelled[1]), rounding)
    raise InputError(
        f"unknown accumulator {name!r}; expected one of {', '.join(ROWS)}, "
        f"or chunked:<length>:<format>[:<rounding mode>]{near_miss(name, ROWS)}"
    )
