"""How a matrix product accumulates, as rows, and the products themselves.

Sources of the tensor-core rows: MMA-Sim (arXiv 2511.10909); Khattak and Mikaitis
(arXiv 2512.07004); Fasi et al., PeerJ CS 7:e330. Promotion every 128: DeepSeek-V3
(arXiv 2412.19437) section 3.3.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from policysearch.formats import Format, Rounding, RoundingMode, format_named
from policysearch.rounding import NEAREST_EVEN, rounder
from policysearch.tensor_core import ARCHITECTURES, TensorCore, tensor_core
from policysearch.values import InputError, one_of

try:
    import policysearch._tensor_core as _tensor_core
except ImportError:
    _tensor_core = None

FloatArray = npt.NDArray[np.float32]
Kind = Literal["blas", "chunked", "sequential", "tensor_core"]


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
    rounding: Rounding = NEAREST_EVEN
    architecture: str = ""
    promote: bool = False


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
    "convolution algorithms) and its epilogue; block scales inside the tensor core"
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
        spelled = _CHUNK.fullmatch(name)
        if spelled:
            mode = spelled[3] or "nearest_even"
            rounding = _CHUNK_ROUNDINGS[one_of(f"{name}, rounding mode", mode, _CHUNK_ROUNDINGS)]
            rounder(format_named(spelled[2]), rounding)  # refuses what float32 cannot hold
            return Accumulator(name, "chunked", _CHUNKED, spelled[2], int(spelled[1]), rounding)
    raise InputError(
        f"unknown accumulator {name!r}; expected one of {', '.join(ACCUMULATORS)}, "
        "or chunked:<length>:<format>[:<rounding mode>]"
    )


def compiled_available() -> bool:
    """Whether the extension `policysearch._tensor_core` was built and can be imported."""
    return _tensor_core is not None


def product(
    accumulator: Accumulator,
    operand: Format | tuple[Format, Format],
    *,
    compiled: bool | None = None,
) -> Callable[..., object]:
    """Return f(left, right, out=out): the product of [..., m, k] and [..., k, n], summed so.

    Leading axes broadcast and strides are free, as in numpy.matmul; all arrays are float32, the
    values already on the format `operand` (a pair: left and right); `out` may not overlap the
    operands. f owns its scratch and is not thread safe. `compiled`: None takes the extension where
    it is built, False numpy, True the extension or an InputError; the bits are the same. Raises
    InputError for an operand that the tensor core does not take.
    """
    if compiled and _tensor_core is None:
        raise InputError("accumulator, compiled: True; the extension is not built, expected False")
    if accumulator.kind == "blas":
        return np.matmul
    if accumulator.kind == "chunked":
        return _Chunked(accumulator, compiled)
    if accumulator.kind == "sequential":
        return _sequential
    pair = operand if isinstance(operand, tuple) else (operand, operand)
    unit = tensor_core(
        accumulator.architecture, *pair, result=accumulator.result, promote=accumulator.promote
    )
    return _Exact(unit, compiled)


class _Exact:
    """The product of one tensor-core model."""

    def __init__(self, unit: TensorCore, compiled: bool | None) -> None:
        self._unit = unit
        self._packed = unit.packed()
        self._extension = None if compiled is False else _tensor_core

    def __call__(self, left: FloatArray, right: FloatArray, *, out: FloatArray) -> FloatArray:
        _check(left, right, out)
        if not left.shape[-1]:
            out.fill(0.0)
        elif self._extension is None:
            self._unit.matmul(left, right, out)
        else:
            lead = out.shape[:-2]
            if left.shape[:-2] != lead:
                left = np.broadcast_to(left, lead + left.shape[-2:])
            if right.shape[:-2] != lead:
                right = np.broadcast_to(right, lead + right.shape[-2:])
            self._extension.matmul_into(left, right, out, self._packed)
        return out


class _Chunked:
    """BLAS over slices of the contraction, the running sum rounded after each."""

    def __init__(self, row: Accumulator, compiled: bool | None) -> None:
        fmt = format_named(row.result)
        extension = False if compiled is False else None
        self._round = None
        if fmt.name != "float32":
            self._round = rounder(fmt, row.rounding, compiled=extension)
        self._length = row.length
        self._part = np.empty(0, np.float32)
        self._total = np.empty(0, np.float32)

    def __call__(self, left: FloatArray, right: FloatArray, *, out: FloatArray) -> FloatArray:
        _check(left, right, out)
        if self._part.shape != out.shape:
            self._part = np.empty(out.shape, np.float32)
        total = out if out.flags.c_contiguous else self._contiguous(out)
        with np.errstate(all="ignore"):
            self._sum(left, right, total)
        if total is not out:
            np.copyto(out, total)
        return out

    def _sum(self, left: FloatArray, right: FloatArray, total: FloatArray) -> None:
        flat = total.reshape(-1)
        for first in range(0, max(left.shape[-1], 1), self._length):
            part = slice(first, first + self._length)
            to = self._part if first else total
            np.matmul(left[..., part], right[..., part, :], out=to)
            if first:
                np.add(total, self._part, out=total)
            if self._round is not None:
                self._round(flat, flat)

    def _contiguous(self, out: FloatArray) -> FloatArray:
        if self._total.shape != out.shape:
            self._total = np.empty(out.shape, np.float32)
        return self._total


def _sequential(left: FloatArray, right: FloatArray, *, out: FloatArray) -> FloatArray:
    """Write the product summed in float16, one fused multiply-add after the other.

    Product and sum are exact in float64 for float16 operands, or lose only what cannot move the
    rounding to float16.
    """
    _check(left, right, out)
    running = np.zeros(out.shape, np.float16)
    with np.errstate(all="ignore"):
        for k in range(left.shape[-1]):
            term = left[..., :, k, None].astype(np.float64) * right[..., k, None, :]
            running = (running + term).astype(np.float16)
    np.copyto(out, running)
    return out


def _check(left: FloatArray, right: FloatArray, out: FloatArray) -> None:
    """InputError unless the arrays are float32 and their shapes fit a product."""
    if not left.dtype == right.dtype == out.dtype == np.float32:
        raise InputError(f"product: {left.dtype}, {right.dtype}, {out.dtype}; expected float32")
    if not _fit(left.shape, right.shape, out.shape):
        raise InputError(
            f"product: {left.shape} and {right.shape} into {out.shape}; "
            "expected [..., m, k] and [..., k, n] into [..., m, n]"
        )


def _fit(left: tuple[int, ...], right: tuple[int, ...], out: tuple[int, ...]) -> bool:
    if min(len(left), len(right), len(out)) < 2 or left[-1] != right[-2]:
        return False
    if out[-2:] != (left[-2], right[-1]):
        return False
    if left[:-2] == right[:-2] == out[:-2]:
        return True
    try:
        return np.broadcast_shapes(left[:-2], right[:-2]) == out[:-2]
    except ValueError:
        return False
