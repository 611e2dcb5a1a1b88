"""Measured seconds of single kernels, and an estimate between those that were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from policysearch.formats import format_named
from policysearch.values import InputError, number, one_of

Extents = tuple[int, ...]

ANY_PASS = "add"
"""The op that stands for one that was not timed and is no product: a pass over memory."""
ANY_PRODUCT = "matmul.nt"
"""The op that stands for a product that was not timed."""

PRODUCTS = ("linear", "matmul.nn", "matmul.nt", "matmul.tn", "matmul.tt")
"""The ops that are products; t: an operand is transposed."""


def is_product(op: str) -> bool:
    """Return whether a kernel of this op is a product; of a CSV file it may not be in PRODUCTS."""
    return op.startswith(("matmul", "linear"))


SAME_RATE = 1e-3
"""Weight of "twice the extent, twice the time" in an estimate, beside 1 for a neighbour 2x off."""


@dataclass(frozen=True)
class Work:
    """What a kernel does, as far as its time on one device depends on it.

    `op`: the op it is called after; of a product also which operands are transposed ("matmul.nt"),
    or "linear" where the bias is added by the same call. `format`: of the first operand, with
    ">" and the format of the result where that is another. `extents`: of a product (batch, rows,
    columns, depth), of an update (tensors, elements), of others (rows, elements of a row).
    """

    op: str
    format: str
    extents: Extents


@dataclass(frozen=True)
class Timing:
    """Measured seconds of one kernel.

    `seconds`: with its operands evicted from the caches; `cached_seconds`: run again at once.
    """

    op: str
    format: str
    extents: Extents
    seconds: float
    cached_seconds: float

    def __post_init__(self) -> None:
        for name in self.format.split(">"):
            format_named(name)
        if not self.extents or min(self.extents) < 1:
            raise InputError(f"extents: {list(self.extents)}; expected positive ones")
        if is_product(self.op):
            one_of("op", self.op, PRODUCTS)
            if len(self.extents) != 4:
                valid = "batch, rows, columns and depth of a product"
                raise InputError(f"extents: {list(self.extents)}; expected {valid}")
        number("extents", math.prod(self.extents), 1, 1e18)
        number("seconds", self.seconds, 1e-12, 1e6)
        number("cached_seconds", self.cached_seconds, 1e-12, 1e6)

    def within(self, cached_share: float) -> float:
        """Return the seconds where this share of the operands is in the cache."""
        return cached_share * self.cached_seconds + (1 - cached_share) * self.seconds


@dataclass(frozen=True)
class Timings:
    """Kernels that were timed on one device."""

    rows: tuple[Timing, ...]

    def seconds(self, work: Work, cached_share: float = 0.0) -> float:
        """Return the seconds of a kernel with `cached_share` of its operands in the cache.

        What was timed is looked up, the median of several timings; the rest is estimated from
        kernels of the same op and format. An op or format that was not timed takes the likest
        that was.
        """
        key = (work, round(cached_share, 6))
        if key not in self._estimates:
            self._estimates[key] = self._estimate(work, key[1])
        return self._estimates[key]

    def check(self) -> None:
        """Raise InputError where an op that was not timed has no stand-in."""
        timed = {row.op for row in self.rows}
        if self.rows and not timed.issuperset((ANY_PRODUCT, ANY_PASS)):
            valid = f"{ANY_PRODUCT} and {ANY_PASS} among them"
            raise InputError(f"timings: {', '.join(sorted(timed))}; expected {valid}")

    @cached_property
    def _estimates(self) -> dict[tuple[Work, float], float]:
        return {}

    @cached_property
    def _by_kind(self) -> dict[tuple[str, str], dict[Extents, list[Timing]]]:
        kinds: dict[tuple[str, str], dict[Extents, list[Timing]]] = {}
        for row in self.rows:
            kinds.setdefault((row.op, row.format), {}).setdefault(row.extents, []).append(row)
        return kinds

    def _estimate(self, work: Work, cached_share: float) -> float:
        rows = self._by_kind[self._likest(work)]
        extents = work.extents
        if extents in rows:
            return float(np.median([row.within(cached_share) for row in rows[extents]]))
        alike = {k: v for k, v in rows.items() if len(k) == len(extents)}
        if not alike:  # a stand-in of another kind: only the number of elements compares
            alike = {(math.prod(k),): v for k, v in rows.items()}
            extents = (math.prod(extents),)
        points = [row.within(cached_share) for many in alike.values() for row in many]
        places = [k for k, many in alike.items() for _ in many]
        return between(places, points, extents)

    def _likest(self, work: Work) -> tuple[str, str]:
        """Return the timed op and format that stand for those of `work`."""
        if (work.op, work.format) in self._by_kind:
            return work.op, work.format
        stand_in = ANY_PRODUCT if is_product(work.op) else ANY_PASS
        for op in (work.op, stand_in):
            timed = [format for name, format in self._by_kind if name == op]
            if timed:
                return op, min(timed, key=lambda format: _difference(format, work.format))
        raise InputError(f"timings: no kernel like {work.op!r}; expected {stand_in!r} among them")


NO_TIMINGS = Timings(())


def _difference(one: str, other: str) -> tuple[float, str]:
    """How far apart two formats of kernels are: in bits per element, then by name."""
    return abs(math.log(_bits(one) / _bits(other))), one


def _bits(format: str) -> int:
    first, _, last = format.partition(">")
    return format_named(first).bits + format_named(last or first).bits


def between(places: Sequence[Extents], seconds: Iterable[float], wanted: Extents) -> float:
    """Return the seconds at the extents `wanted`, estimated from those measured at `places`.

    log seconds = a + sum of b * log2 extent with no b below 0, fitted by least squares in which a
    place counts as one over the fourth power of its distance in powers of two: a power law that
    holds near the extents asked for, whatever kernel the library takes far from them. More work
    never takes less time, so no b is below 0 (non-negative least squares, Lawson and Hanson, 1974).
    Rows of small weight (SAME_RATE) ask for b = log 2, twice the time for twice the extent, which
    decides only where no timing varies that extent.
    """
    from scipy.optimize import nnls  # half a second, which only a device with timings waits for

    at = np.log2(np.asarray(places, float)) - np.log2(np.asarray(wanted, float))
    logs = np.log(np.asarray(list(seconds), float))
    weight: NDArray[np.float64] = 1 / (0.25 + np.sqrt((at**2).sum(axis=1))) ** 2
    weight /= weight.max()
    low = logs.min() - 100  # a may have either sign, an unknown of nnls may not: a - low is one
    ones = np.ones((len(at), 1))
    table = np.hstack([ones, at]) * weight[:, None]
    same_rate = np.hstack([np.zeros((at.shape[1], 1)), np.eye(at.shape[1])]) * SAME_RATE
    target = np.concatenate([(logs - low) * weight, np.full(at.shape[1], math.log(2)) * SAME_RATE])
    # extents are measured from those asked for, so that the estimate is a alone
    solution, _ = nnls(np.vstack([table, same_rate]), target)
    return float(math.exp(solution[0] + low))
