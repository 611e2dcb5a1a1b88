"""The quantiser: float32 values rounded onto a format, in float32 containers.

The numpy code of `policysearch.rounding.reference` is the reference; the optional extension
`policysearch.rounding._rounding` gives the same bits in one pass. NaN stays NaN in every format.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np

from policysearch.formats import Format, Rounding
from policysearch.rounding.grid import (
    BLOCK,
    FIRSTS,
    MASK64,
    MODES,
    FloatArray,
    Grid,
    block_key,
    grid_of,
    mix64,
)
from policysearch.rounding.nearest import Known
from policysearch.rounding.reference import Blocks, Scratch
from policysearch.rounding.stochastic import draw_table
from policysearch.values import InputError

try:
    import policysearch.rounding._rounding as _rounding
except ImportError:
    _rounding = None

NEAREST_EVEN = Rounding()
ANYTHING = Known()


def compiled_available() -> bool:
    """Whether the extension `policysearch.rounding._rounding` was built and can be imported."""
    return _rounding is not None


class Rounder:
    """Rounds float32 arrays onto one format. Not thread safe, nor are two that share `scratch`."""

    def __init__(
        self,
        grid: Grid,
        seed: int,
        extension: ModuleType | None,
        scratch: Scratch | None = None,
    ) -> None:
        self.extension = extension
        self.packed = grid.packed()
        if grid.stochastic and extension is not None:
            self.packed += draw_table(BLOCK + FIRSTS).tobytes()
        self.seed = seed & MASK64
        self._mixed_seed = mix64(self.seed)
        self._stochastic = grid.stochastic
        self._nearest = MODES[grid.mode] == "nearest_even"
        self._identity = bool(grid.wide) and not (grid.shift or grid.flush_below)
        self._blocks = Blocks(grid, scratch or Scratch())

    def __call__(self, x: FloatArray, out: FloatArray, counter: int = 0) -> None:
        """Write the rounded `x` to `out` (1-D, contiguous float32, equal size; may be `x`).

        `counter` (64 bits) keys the stochastic mode: element i draws from (seed, counter, i) alone.
        """
        if self.extension is not None:
            try:
                self.extension.round_into(x, out, self.packed, self.seed, counter)
            except (ValueError, BufferError):
                _check(x=x, out=out)
                raise
            return
        _check(x=x, out=out)
        with np.errstate(all="ignore"):
            for block, start in enumerate(range(0, x.size, BLOCK)):
                part = slice(start, start + BLOCK)
                self._blocks(x[part], out[part], self._key(counter, block))

    @property
    def kernel_grid(self) -> bytes | None:
        """What tells another extension to round its results so; None where it cannot."""
        return self.packed if self.extension is not None and self._nearest else None

    def bind(self, x: FloatArray, out: FloatArray, known: Known = ANYTHING) -> Callable[[], object]:
        """Return the call that rounds `x` to `out`, fixed for good; not for the stochastic mode.

        Saves the checks and views of `__call__`, and what is `known` not to matter; wants numpy's
        floating-point warnings off.
        """
        _check(x=x, out=out)
        if self.extension is not None:
            round_into, packed = self.extension.round_into, self.packed
            return lambda: round_into(x, out, packed, 0, 0)
        bound = [self._blocks.bind(part, to, known) for part, to in _in_blocks(x, out)]
        calls = [call for call in bound if call is not None]
        if len(calls) < len(bound):
            return lambda: self(x, out)
        return _in_turn(calls)

    def bind_drawn(self, x: FloatArray, out: FloatArray) -> Callable[[int], object]:
        """Return the call of a counter that rounds `x` to `out`, fixed for good, in any mode.

        Saves the checks and views of `__call__`; wants numpy's floating-point warnings off.
        """
        _check(x=x, out=out)
        if self.extension is not None:
            round_into, packed, seed = self.extension.round_into, self.packed, self.seed
            return lambda counter: round_into(x, out, packed, seed, counter)
        bound = [self._blocks.bind_drawn(*arrays) for arrays in _in_blocks(x, out)]
        calls = [call for call in bound if call is not None]
        if len(calls) < len(bound):
            return lambda counter: self(x, out, counter)

        def run(counter: int) -> None:
            for block, call in enumerate(calls):
                call(self._key(counter, block))

        return run

    def _key(self, counter: int, block: int) -> tuple[int, int]:
        return block_key(self._mixed_seed, counter & MASK64, block) if self._stochastic else (0, 0)

    def bind_sgd(
        self,
        param: FloatArray,
        velocity: FloatArray,
        grad: FloatArray,
        momentum: float,
        rate: FloatArray,
        known: Known = ANYTHING,
    ) -> Callable[[], object]:
        """Return the call that updates `param` and `velocity`, fixed for good; for nearest even.

        velocity = momentum * velocity + rounded grad; param = param - rate * velocity, every
        operation rounded to float32 on its own; `grad` itself is left alone. `rate` has one
        element; `known` is of `grad`. Wants numpy's floating-point warnings off.
        """
        _check(param=param, velocity=velocity, grad=grad)
        if self.extension is not None:
            update, packed = self.extension.fused_sgd, None if self._identity else self.packed
            return lambda: update(param, velocity, grad, float(rate[0]), momentum, packed)
        parts = _in_blocks(param, velocity, grad)
        bind = self._blocks.bind_sgd
        return _in_turn([bind(p, v, g, momentum, rate, known) for p, v, g in parts])


def _in_blocks(*arrays: FloatArray) -> list[tuple[FloatArray, ...]]:
    starts = range(0, max(arrays[0].size, 1), BLOCK)
    return [tuple(array[start : start + BLOCK] for array in arrays) for start in starts]


def _in_turn(calls: list[Callable[[], object]]) -> Callable[[], object]:
    return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]


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


def _extension(compiled: bool | None) -> ModuleType | None:
    if compiled and _rounding is None:
        raise InputError("rounding, compiled: True; the extension is not built, expected False")
    return None if compiled is False else _rounding


def rounder(
    fmt: Format,
    rounding: Rounding = NEAREST_EVEN,
    *,
    seed: int = 0,
    compiled: bool | None = None,
    scratch: Scratch | None = None,
) -> Rounder:
    """Return the Rounder of `fmt`. InputError if float32 cannot hold the format.

    `compiled`: None takes the extension where it is built, False the numpy reference, True the
    extension or an InputError. float32 is the identity, except that `flush` still applies.
    `scratch` is for rounders that take turns.
    """
    return Rounder(grid_of(fmt, rounding), seed, _extension(compiled), scratch)


def quantise(
    x: FloatArray,
    fmt: Format,
    rounding: Rounding = NEAREST_EVEN,
    *,
    seed: int = 0,
    counter: int = 0,
) -> FloatArray:
    """Return `x` (any shape) rounded onto `fmt`, as a new float32 array."""
    out = np.array(x, np.float32, order="C")
    flat = out.reshape(-1)
    rounder(fmt, rounding, seed=seed)(flat, flat, counter)
    return out
