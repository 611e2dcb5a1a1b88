"""Exact models of the tensor cores' sums, in numpy.

A product is summed in groups along the contraction, first to last. In one group the exact products
and the running sum are aligned to their largest exponent, truncated to `fraction_bits` behind that
exponent's unit, and added exactly; the sum becomes the new running sum, truncated to the result's
format (a float16 result is rounded to nearest even). Exponents are those of the operands added,
before the product of the significands is normalised; a zero counts as exponent -126. Where blocks
have scales, the exponents of both scales are added, and 4-bit products of one scale are summed
exactly first: their sum is aligned by the exponents of the scales alone.

Sources: MMA-Sim (arXiv 2511.10909) for groups, fraction bits, zeros, infinities and NaNs; its
repository (microsoft/MMA-Sim c785138, `simulator/arithmetic.py`) for block scales; Khattak
and Mikaitis (arXiv 2512.07004) for V100, A100 and H100; first study Fasi et al., PeerJ CS 7:e330.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from policysearch.accumulators import ARCHITECTURES, BLOCK_SCALED, EIGHT, HALF, Unit
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
    exact: int = 0
    scale_min_exponent: int = 0

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

    def matmul(
        self,
        left: FloatArray,
        right: FloatArray,
        out: FloatArray,
        scales: Sequence[FloatArray] = (),
    ) -> None:
        """Write the product of [..., m, k] and [..., k, n] to `out` [..., m, n].

        `scales` are those of every element of both, where blocks have some.
        """
        depth = left.shape[-1]
        promoted = np.zeros(out.shape, np.float32)
        running = np.zeros(out.shape, np.float64)
        with np.errstate(all="ignore"):
            for first in range(0, depth, self.group):
                last = min(first + self.group, depth)
                terms = self._terms(left, right, scales, range(first, last))
                running = self._add_group(list(terms), running)
                if self.promote and (last == depth or last % PROMOTION == 0):
                    promoted += running.astype(np.float32)
                    running = np.zeros(out.shape, np.float64)
            total = promoted if self.promote else running.astype(np.float32)
        np.copyto(out, np.where(np.isnan(total), np.float32(np.nan), total))

    def _terms(
        self, left: FloatArray, right: FloatArray, scales: Sequence[FloatArray], places: range
    ) -> Iterator[tuple[DoubleArray, npt.NDArray[np.int32]]]:
        """Yield what is aligned and added in a group, each [..., m, n], and its exponents."""
        for first in places[:: self.exact or 1]:
            part = slice(first, first + 1)
            exponents = []
            if self.exact:
                part = slice(first, min(first + self.exact, places.stop))
            else:
                exponents += [_exponents(left[..., part], self.left_min_exponent)]
                exponents += [_exponents(right[..., part, :], self.right_min_exponent)]
            # exact in float64 in any order: no operand has over 24 bits, those summed here have 4
            term = np.matmul(left[..., part].astype(np.float64), right[..., part, :])
            if scales:
                one = slice(first, first + 1)
                pair = np.abs(scales[0][..., one]), np.abs(scales[1][..., one, :])
                exponents += [_exponents(scale, self.scale_min_exponent) for scale in pair]
                term *= pair[0].astype(np.float64) * pair[1]
            yield term, sum(exponents[1:], exponents[0])

    def _add_group(
        self,
        terms: Sequence[tuple[DoubleArray, npt.NDArray[np.int32]]],
        running: DoubleArray,
    ) -> DoubleArray:
        """Return the running sum [..., m, n] after the terms of one group."""
        top = _exponents(running, self.result.min_exponent)
        plain = running.copy()
        for term, exponent in terms:
            np.maximum(top, exponent, out=top)
            plain += term
        unit = np.ldexp(1.0, top - self.fraction_bits)
        total = np.trunc(running / unit)
        for term, _ in terms:
            total += np.trunc(term / unit)
        return np.where(np.isfinite(plain), self._rounded_sums(total * unit), plain)

    def _rounded_sums(self, total: DoubleArray) -> DoubleArray:
        """Return the exact sums on the result's format; zeros are positive."""
        exponent = np.maximum(_exponents(total, self.result.min_exponent), self.result.min_exponent)
        quantum = np.ldexp(1.0, exponent - self.result.mantissa_bits)
        to_integer: Any = np.rint if self.result.name == "float16" else np.trunc
        found: DoubleArray = to_integer(total / quantum) * quantum + 0.0
        limit = 2.0 ** (self.result.max_exponent + 1)
        infinite: DoubleArray = np.copysign(np.inf, found)
        return np.where(np.abs(found) >= limit, infinite, found)


def _exponents(x: npt.NDArray[Any], lowest: int) -> npt.NDArray[np.int32]:
    """Return floor(log2 |x|), at least `lowest`; zeros, infinities and NaNs count as -126."""
    found = np.maximum(np.frexp(x)[1] - 1, lowest)
    return np.where(np.isfinite(x) & (x != 0), found, np.int32(_ZERO_EXPONENT))


def tensor_core(
    architecture: str,
    left: Format,
    right: Format,
    *,
    result: str = "",
    promote: bool = False,
    scale: Format | None = None,
) -> TensorCore:
    """Return the model of `architecture` for operand formats; InputError where it takes none such.

    `result` "float16" is the instruction with sums in float16, "" in float32. `promote`: 8-bit sums
    go into a float32 sum, rounded to nearest even, every 128 products. `scale`: of scaled blocks.
    """
    if scale is not None:
        return _block_scaled(architecture, left, right, scale, result or "promote" * promote)
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
    promotes = promote and left.name in EIGHT
    return _model(unit, format_named(result or unit.result), promotes, left, right)


def _model(unit: Unit, result: Format, promote: bool, left: Format, right: Format) -> TensorCore:
    lowest = left.min_exponent, right.min_exponent
    return TensorCore(unit.group, unit.fraction_bits, result, promote, *lowest, unit.exact)


def _block_scaled(
    architecture: str, left: Format, right: Format, scale: Format, variant: str
) -> TensorCore:
    units = () if variant else BLOCK_SCALED.get(architecture, ())
    # scales of another format than E8M0 are those of 4-bit operands alone
    powers = scale.exponent_bits == 8 and scale.mantissa_bits == 1
    short = powers or scale.bits == 8
    pair = {left.name, right.name}
    for unit in units:
        if pair <= {*unit.operands} and short and (powers or unit.exact):
            made = _model(unit, format_named(unit.result), False, left, right)
            return replace(made, scale_min_exponent=scale.min_exponent - powers)
    given = f"{left.name} and {right.name} with scales of blocks in {scale.name}"
    valid = ", ".join(f"tensor_core.{name}" for name in BLOCK_SCALED)
    raise InputError(
        f"tensor_core.{architecture}{':' * bool(variant)}{variant}: {given}; expected "
        f"{valid}, 4 to 8 bits and powers of two, or two of 4 bits"
    )
