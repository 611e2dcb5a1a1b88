"""Exact models of the tensor cores' sums, in numpy.

A product is summed in groups along the contraction, first to last. In one group the exact products
and the running sum are aligned to their largest exponent, truncated to `fraction_bits` behind that
exponent's unit, and added exactly; the sum becomes the new running sum, truncated to the result's
format (a float16 result is rounded to nearest even). Exponents are those of the operands added,
before the product of the significands is normalised; a zero counts as exponent -126.

Sources: MMA-Sim (arXiv 2511.10909) for groups, fraction bits, zeros, infinities and NaNs; Khattak
and Mikaitis (arXiv 2512.07004) for V100, A100 and H100; first study Fasi et al., PeerJ CS 7:e330.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policysearch.accumulators import ARCHITECTURES, EIGHT, HALF
from policysearch.formats import Format, format_named
from policysearch.values import InputError

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

PROMOTION = 128
"""Products between two promotions of a running sum into float32."""

_ZERO_EXPONENT = -126


@dataclass(frozen=True)
class TensorCore:
    """One tensor-core model with its operands settled; call `matmul`, or pack it for the twin."""

    group: int
    fraction_bits: int
    result: Format
    promote: bool
    left_min_exponent: int
    right_min_exponent: int

    def packed(self) -> bytes:
        """The nine int32 that the compiled twin reads."""
        return struct.pack(
            "9i",
            self.group,
            self.fraction_bits,
            self.result.mantissa_bits,
            self.result.min_exponent,
            self.result.max_exponent,
            self.result.name == "float16",
            self.promote,
            self.left_min_exponent,
            self.right_min_exponent,
        )

    def matmul(self, left: FloatArray, right: FloatArray, out: FloatArray) -> None:
        """Write the product of [..., m, k] and [..., k, n] to `out` [..., m, n]."""
        depth = left.shape[-1]
        promoted = np.zeros(out.shape, np.float32)
        running = np.zeros(out.shape, np.float64)
        with np.errstate(all="ignore"):
            for first in range(0, depth, self.group):
                last = min(first + self.group, depth)
                running = self._add_group(left[..., first:last], right[..., first:last, :], running)
                if self.promote and (last == depth or last % PROMOTION == 0):
                    promoted += running.astype(np.float32)
                    running = np.zeros(out.shape, np.float64)
            total = promoted if self.promote else running.astype(np.float32)
        np.copyto(out, np.where(np.isnan(total), np.float32(np.nan), total))

    def _add_group(self, left: FloatArray, right: FloatArray, running: DoubleArray) -> DoubleArray:
        """Return the running sum [..., m, n] after the products of one group."""
        left_exponent = _exponents(left, self.left_min_exponent)
        right_exponent = _exponents(right, self.right_min_exponent)
        top = _exponents(running, self.result.min_exponent)
        plain = running.copy()
        for g in range(left.shape[-1]):
            pair = left_exponent[..., :, g, None] + right_exponent[..., g, None, :]
            np.maximum(top, pair, out=top)
            plain += _products(left, right, g)
        unit = np.ldexp(1.0, top - self.fraction_bits)
        total = np.trunc(running / unit)
        for g in range(left.shape[-1]):
            total += np.trunc(_products(left, right, g) / unit)
        return np.where(np.isfinite(plain), self._rounded(total * unit), plain)

    def _rounded(self, total: DoubleArray) -> DoubleArray:
        """Return the exact sums on the result's format; zeros are positive."""
        exponent = np.maximum(_exponents(total, self.result.min_exponent), self.result.min_exponent)
        quantum = np.ldexp(1.0, exponent - self.result.mantissa_bits)
        to_integer: Any = np.rint if self.result.name == "float16" else np.trunc
        found: DoubleArray = to_integer(total / quantum) * quantum + 0.0
        limit = 2.0 ** (self.result.max_exponent + 1)
        infinite: DoubleArray = np.copysign(np.inf, found)
        return np.where(np.abs(found) >= limit, infinite, found)


def _products(left: FloatArray, right: FloatArray, g: int) -> DoubleArray:
    """Products [..., m, n] of column `g` and row `g`; exact, as no operand has over 24 bits."""
    found: DoubleArray = left[..., :, g, None].astype(np.float64) * right[..., g, None, :]
    return found


def _exponents(x: npt.NDArray[Any], lowest: int) -> npt.NDArray[np.int32]:
    """Return floor(log2 |x|), at least `lowest`; zeros, infinities and NaNs count as -126."""
    found = np.maximum(np.frexp(x)[1] - 1, lowest)
    return np.where(np.isfinite(x) & (x != 0), found, np.int32(_ZERO_EXPONENT))


def tensor_core(
    architecture: str, left: Format, right: Format, *, result: str = "", promote: bool = False
) -> TensorCore:
    """Return the model of `architecture` for these operand formats.

    `result` "float16" is the instruction that keeps its sums in float16; "" the one that keeps
    them in float32. `promote`: the sums of 8-bit operands go into a float32 sum, rounded to
    nearest even, every 128 products. InputError where the tensor core takes no such operands.
    """
    units = ARCHITECTURES[architecture]
    if result == "float16":
        units = tuple(unit for unit in units if "tfloat32" not in unit.operands)
    valid = [
        name for unit in units for name in unit.operands if not (result and name == "bfloat16")
    ]
    for fmt in (left, right):
        if fmt.name not in valid:
            raise InputError(
                f"tensor_core.{architecture}{':' + result if result else ''}: operand "
                f"{fmt.name!r}; expected one of {', '.join(valid)}"
            )
    unit = next(unit for unit in units if left.name in unit.operands)
    if right.name != left.name and (right.name not in unit.operands or unit.operands == HALF):
        raise InputError(
            f"tensor_core.{architecture}: operands {left.name!r} and {right.name!r}; "
            "expected one format, or two 8-bit (or smaller) ones"
        )
    return TensorCore(
        unit.group,
        unit.fraction_bits,
        format_named(result or unit.result),
        promote and left.name in EIGHT,
        left.min_exponent,
        right.min_exponent,
    )
