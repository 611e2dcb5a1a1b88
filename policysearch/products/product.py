"""Matrix products, summed as an accumulator does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from policysearch.accumulators import HALF, Accumulator, accumulator_named
from policysearch.formats import Format, format_named
from policysearch.products.tensor_cores import TensorCore, tensor_core
from policysearch.rounding.extension import extension
from policysearch.rounding.rounder import Fast, check_fast, rounder
from policysearch.values import InputError

_tensor_core = extension("products._tensor_core")


FloatArray = npt.NDArray[np.float32]


def compiled_available() -> bool:
    """Whether the extension `policysearch.products._tensor_core` was built and can be imported."""
    return _tensor_core is not None


def product(
    accumulator: Accumulator,
    operand: Format | tuple[Format, Format],
    *,
    fast: Fast | None = None,
    scale: Format | None = None,
) -> Callable[..., object]:
    """Return f(left, right, out=out): the product of [..., m, k] and [..., k, n], summed so.

    Leading axes broadcast and strides are free, as in numpy.matmul; all arrays are float32, the
    values already on the format `operand` (a pair: left and right); `out` may not overlap the
    operands. f owns its scratch and is not thread safe. `fast` as in `check_fast`; a tensor core is
    modelled in C for "c" and where its extension was built, and in numpy else, with the same bits.
    With a `scale`, the format of scales of blocks, a tensor core's f takes `scales`, those of every
    element of both. Raises InputError for an operand that the tensor core does not take.
    """
    fast = check_fast(fast)
    if accumulator.kind == "blas":
        return np.matmul
    if accumulator.kind == "chunked":
        return _Chunked(accumulator, fast)
    if accumulator.kind == "sequential":
        return _sequential
    pair = operand if isinstance(operand, tuple) else (operand, operand)
    if accumulator.kind == "matrix_units":
        return MatrixUnits(_sixteen_bits(pair))
    unit = tensor_core(
        accumulator.architecture,
        *pair,
        result=accumulator.result,
        promote=accumulator.promote,
        scale=scale,
    )
    return _Exact(unit, fast)


def check_scaled(
    accumulator: str, operands: Sequence[Format], scales: Sequence[str | None]
) -> None:
    """Raise InputError where an accumulator does not sum products of operands in blocks.

    `scales` are the formats of their scales, None of an operand without any.
    """
    row = accumulator_named(accumulator)
    if row.kind != "tensor_core":
        return
    of = scales[0]
    if of is None or {*scales} != {of}:
        raise InputError(
            f"scales in {', '.join(map(str, scales))}; expected a matrix product of two operands "
            "in blocks of one recipe, or accumulator float32 or chunked:<length>:<format>"
        )
    product(row, (operands[0], operands[1]), scale=format_named(of))


@dataclass(frozen=True)
class MatrixUnits:
    """A product on a GPU's units for `operands`, a 16-bit format; a step on torch runs it."""

    operands: str

    def __call__(self, left: FloatArray, right: FloatArray, *, out: FloatArray) -> FloatArray:
        raise InputError(
            'accumulator matrix_units: a step on a CPU; expected fast = "torch", place = "cuda"'
        )


def _sixteen_bits(pair: tuple[Format, Format]) -> str:
    """Return the 16-bit format that holds every number of both; InputError where none does."""
    for name in HALF:
        if all(_holds(format_named(name), fmt) for fmt in pair):
            return name
    names = " and ".join(repr(fmt.name) for fmt in pair)
    raise InputError(f"matrix_units: operands {names}; expected two that float16 or bfloat16 holds")


def _holds(wide: Format, fmt: Format) -> bool:
    """Return whether every number of `fmt` is one of `wide`."""
    return (
        fmt.mantissa_bits <= wide.mantissa_bits
        and fmt.max <= wide.max
        and fmt.min_subnormal >= wide.min_subnormal
    )


class _Exact:
    """The product of one tensor-core model."""

    def __init__(self, unit: TensorCore, fast: Fast) -> None:
        self._unit = unit
        self._packed = unit.packed()
        self._extension = _tensor_core if fast == "c" else None

    def __call__(
        self,
        left: FloatArray,
        right: FloatArray,
        *,
        out: FloatArray,
        scales: Sequence[FloatArray] = (),
    ) -> FloatArray:
        _check(left, right, out)
        if not left.shape[-1]:
            out.fill(0.0)
        elif self._extension is None or scales:
            self._unit.matmul(left, right, out, scales)
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

    def __init__(self, row: Accumulator, fast: Fast) -> None:
        fmt = format_named(row.result)
        self._round = None
        if fmt.name != "float32":
            self._round = rounder(fmt, row.rounding, fast=fast)
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
