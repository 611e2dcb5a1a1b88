"""The quantiser: float32 values rounded onto a format, in float32 containers.

`policysearch.rounding.reference` says what the values are; the short cuts in numpy and the optional
extension `_rounding`, which takes one pass, give the same bits. NaN stays NaN in every format.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from policysearch.formats import Format, Rounding
from policysearch.rounding.extension import extension
from policysearch.rounding.grid import (
    FIRSTS,
    KEY_SPAN,
    MASK64,
    MODES,
    SPAN,
    FloatArray,
    Grid,
    grid_of,
    mix64,
    span_key,
)
from policysearch.rounding.reference import round_span
from policysearch.rounding.stochastic import draw_table
from policysearch.values import InputError, one_of

try:
    from policysearch.rounding import fast_numpy
except ImportError:
    fast_numpy = None  # type: ignore[assignment]

_rounding = extension("rounding._rounding")

NEAREST_EVEN = Rounding()

Fast = str
"""One of FASTS; or TORCH, with ":" and a place where that is no CPU: "torch:cuda:0"."""

FASTS: tuple[Fast, ...] = ("c", "numpy", "off")
"""What may run in the place of the reference, the fastest first; the bits are the same."""

TORCH = "torch"
"""What runs a step on torch, on a CPU or a GPU: sums have another order, so the bits differ."""

EXECUTORS = (*FASTS, TORCH)

PLACES = re.compile(r"cpu|cuda(:[0-9]{1,2})?")


def fast_ways() -> tuple[Fast, ...]:
    """Return the members of FASTS that are there: C where it was built, and so on."""
    missing = {"c": _rounding is None, "numpy": fast_numpy is None, "off": False}
    return tuple(fast for fast in FASTS if not missing[fast])


def is_on_torch(fast: Fast | None) -> bool:
    """Return whether it is TORCH, wherever that runs."""
    return fast is not None and fast.partition(":")[0] == TORCH


def at_place(fast: Fast | None, place: str | None) -> Fast | None:
    """Return what emulates at a place, for a member of EXECUTORS; whether it is there is not asked.

    InputError for another name, and for a place of what has none.
    """
    if fast is not None:
        one_of("fast", fast, EXECUTORS)
    if place is None:
        return fast
    if fast != TORCH:
        raise InputError(f"place: {place!r} with fast {fast!r}; expected fast {TORCH!r}")
    if not PLACES.fullmatch(place):
        raise InputError(f"place: {place!r}; expected cpu, cuda or cuda:<number>")
    return TORCH if place == "cpu" else f"{TORCH}:{place}"


def check_fast(fast: Fast | None) -> Fast:
    """Return `fast`, or the fastest way for None; InputError where it is not there."""
    ways = fast_ways()
    if fast is None:
        return ways[0]
    if is_on_torch(fast):
        return _on_torch(fast.partition(":")[2] or "cpu")
    if one_of("fast", fast, EXECUTORS) not in ways:
        raise InputError(f"fast: {fast!r}, which is not built; expected one of {', '.join(ways)}")
    return fast


def _on_torch(place: str) -> Fast:
    """Return the name of torch at a place; InputError where it is not there."""
    named = at_place(TORCH, place)
    if importlib.util.find_spec("torch") is None:
        raise InputError("fast: 'torch', which is not installed; expected `pip install torch`")
    if place == "cpu" or named is None:
        return TORCH
    torch = importlib.import_module("torch")
    count, number = torch.cuda.device_count(), int(place.partition(":")[2] or 0)
    if number >= count:
        raise InputError(f"place: {place}, of {count} CUDA devices that torch sees; expected one")
    return named


class Rounder:
    """Rounds float32 arrays onto one format. Not thread safe, nor are two that share `scratch`."""

    def __init__(
        self,
        grid: Grid,
        seed: int,
        fast: Fast,
        scratch: fast_numpy.Scratch | None = None,
    ) -> None:
        self.extension: ModuleType | None = _rounding if fast == "c" else None
        self.packed = grid.packed()
        if grid.stochastic and self.extension is not None:
            self.packed += draw_table(KEY_SPAN + FIRSTS).tobytes()
        self.seed = seed & MASK64
        self._mixed_seed = mix64(self.seed)
        self._grid = grid
        self._short_cuts = None
        if fast == "numpy":
            self._short_cuts = fast_numpy.ShortCuts(grid, scratch or fast_numpy.Scratch())

    def __call__(self, x: FloatArray, out: FloatArray, counter: int = 0) -> None:
        """Write the rounded `x` to `out` (1-D, contiguous float32, equal size; may be `x`).

        `counter` (64 bits) keys the stochastic mode: element i draws from (seed, counter, i) alone.
        """
        if not isinstance(x, np.ndarray):
            out[...] = _elsewhere(x, self._grid, self.seed, counter)
            return
        if self.extension is not None:
            try:
                self.extension.round_into(x, out, self.packed, self.seed, counter)
            except (ValueError, BufferError):
                _check(x=x, out=out)
                raise
            return
        with np.errstate(all="ignore"):
            self.bind_drawn(x, out)(counter)

    @property
    def kernel_grid(self) -> bytes | None:
        """What tells a kernel in C to round its results so; None where it cannot."""
        nearest = MODES[self._grid.mode] == "nearest_even"
        return self.packed if self.extension is not None and nearest else None

    def bind(self, x: FloatArray, out: FloatArray) -> Callable[[], object]:
        """Return the call that rounds `x` to `out`, fixed for good; not for the stochastic mode.

        Saves the checks and views of `__call__`; wants numpy's floating-point warnings off.
        """
        _check(x=x, out=out)
        if self.extension is not None:
            round_into, packed = self.extension.round_into, self.packed
            return lambda: round_into(x, out, packed, 0, 0)
        if self._short_cuts is None:
            drawn = self.bind_drawn(x, out)
            return lambda: drawn(0)
        calls = [self._short_cuts.bind(*arrays) for arrays in _in_spans(SPAN, x, out)]
        return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]

    def bind_drawn(self, x: FloatArray, out: FloatArray) -> Callable[[int], object]:
        """Return the call of a counter that rounds `x` to `out`, fixed for good, in any mode.

        Saves the checks and views of `__call__`; wants numpy's floating-point warnings off.
        """
        _check(x=x, out=out)
        if self.extension is not None:
            round_into, packed, seed = self.extension.round_into, self.packed, self.seed
            return lambda counter: round_into(x, out, packed, seed, counter)
        if self._short_cuts is None:
            calls = [self._plain(*arrays) for arrays in _in_spans(KEY_SPAN, x, out)]
        else:
            calls = [self._short_cuts.bind_drawn(*arrays) for arrays in _in_spans(KEY_SPAN, x, out)]

        def run(counter: int) -> None:
            for span, call in enumerate(calls):
                call(self._key(counter, span))

        return run

    def _plain(self, x: FloatArray, out: FloatArray) -> Callable[[tuple[int, int]], object]:
        return lambda key: round_span(self._grid, x, out, key)

    def _key(self, counter: int, span: int) -> tuple[int, int]:
        stochastic = self._grid.stochastic
        return span_key(self._mixed_seed, counter & MASK64, span) if stochastic else (0, 0)


def _elsewhere(x: Any, grid: Grid, seed: int, counter: int) -> FloatArray:
    """Return an array of another kind, which knows how it is rounded (`TorchArray`), rounded."""
    found: FloatArray = x.rounded(grid, seed, counter)
    return found


def _in_spans(length: int, *arrays: FloatArray) -> list[tuple[FloatArray, ...]]:
    starts = range(0, max(arrays[0].size, 1), length)
    return [tuple(array[start : start + length] for array in arrays) for start in starts]


def _check(**arrays: FloatArray) -> None:
    """InputError unless all are contiguous 1-D float32 of one size."""
    size = next(iter(arrays.values())).size
    for name, array in arrays.items():
        if array.dtype != np.float32 or array.ndim != 1 or array.size != size:
            given = f"{array.dtype} of shape {array.shape}"
        elif not array.flags.c_contiguous:
            given = "a strided array"
        else:
            continue
        raise InputError(f"rounding, {name}: {given}; expected {size} contiguous float32 in 1-D")


def rounder(
    fmt: Format,
    rounding: Rounding = NEAREST_EVEN,
    *,
    seed: int = 0,
    fast: Fast | None = None,
    scratch: fast_numpy.Scratch | None = None,
) -> Rounder:
    """Return the Rounder of `fmt`. InputError if float32 cannot hold the format.

    `fast` as in `check_fast`. float32 is the identity, except that `flush` still applies.
    `scratch` is for rounders that take turns.
    """
    return Rounder(grid_of(fmt, rounding), seed, check_fast(fast), scratch)


def quantise(
    x: FloatArray,
    fmt: Format,
    rounding: Rounding = NEAREST_EVEN,
    *,
    seed: int = 0,
    counter: int = 0,
) -> FloatArray:
    """Return `x` (any shape) rounded onto `fmt`, as a new float32 array: where `x` is."""
    if not isinstance(x, np.ndarray | np.generic | float):
        return _elsewhere(x, grid_of(fmt, rounding), seed, counter)
    out = np.array(x, np.float32, order="C")
    flat = out.reshape(-1)
    rounder(fmt, rounding, seed=seed)(flat, flat, counter)
    return out
