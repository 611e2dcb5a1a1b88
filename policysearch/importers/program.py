"""An exported forward pass as plain data: calls of torch's ops, whatever the batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from policysearch.graph import Shape

FLOATS, WHOLES, TRUTHS = KINDS = ("floats", "whole numbers", "truth values")
"""What a value of torch holds, by its dtype: only floats are rounded, only truth values mask."""

COMPLEX = "complex numbers"
"""What a constant may hold besides; it is stored by its parts, [..., 2]."""

MEETING = "floats of what they meet"
"""Or floats made in the format of a value: where nothing says of which, of what they meet."""


UNCAST = "uncast"
"""An option of calls under autocast(enabled=False)."""


@dataclass(frozen=True)
class Extent:
    """A whole number that depends on the batch: base + per_example * size + per_pair * size^2."""

    base: int
    per_example: int
    per_pair: int = 0


@dataclass(frozen=True)
class Grown:
    """A number that depends on the batch: factor * size ** power."""

    factor: float
    power: int


@dataclass(frozen=True)
class Logarithm:
    """A number that depends on the batch: base + factor * log(size)."""

    base: float
    factor: float


@dataclass(frozen=True)
class Ref:
    """The value called `name`: an input, an array, or the result of a call."""

    name: str


@dataclass(frozen=True)
class Piece:
    """What a call is a piece of: an `op` as the user wrote it, and torch's `kernel` for it.

    Pieces of one kernel have the same name for it; "" where torch itself has several.
    """

    op: str
    kernel: str


@dataclass(frozen=True)
class Call:
    """One call of a torch op, `op` as in "aten.linear", from the module at `path`.

    `arguments` and `options` hold numbers, names, None, Extent, Ref and tuples of those; `shape`
    is that of its result, None where that is no single tensor. `changed` names the value that the
    result takes the place of, for an op that works in place. `fault` says why its arguments
    cannot be had, if they cannot. `kind` is one of KINDS. `line` is the place in the user's file,
    as "net.py:12", where torch kept it: no part of what the call means. `piece` says of what it is
    one, if it is.
    """

    name: str
    op: str
    path: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    shape: tuple[int | Extent, ...] | None
    changed: str = ""
    fault: str = ""
    kind: str = FLOATS
    line: str = field(default="", compare=False, repr=False)
    piece: Piece | None = None


@dataclass(frozen=True)
class Constant:
    """An array of the model that nothing moves, repeated `times` along a `batch_axis`, if any.

    Truth values are 1 and 0. `kind` is one of KINDS, COMPLEX, or MEETING, then `format_of` names
    the value whose format it has, "" where that is what it meets.
    """

    name: str
    shape: Shape
    batch_axis: int | None = None
    kind: str = FLOATS
    times: int | Extent = Extent(0, 1)
    format_of: str = ""


@dataclass(frozen=True)
class Program:
    """A forward pass: arrays by the names that calls have for them, the calls, the results.

    `arrays` maps such names to parameters and running statistics, `results` are the tensors the
    module returns, in order. `updated` are the buffers that the calls move, with the name of what
    each becomes. `folded` are the paths of modules whose calls are none of these, only constants.
    """

    arrays: tuple[tuple[str, str], ...]
    constants: tuple[Constant, ...]
    calls: tuple[Call, ...]
    results: tuple[str, ...]
    updated: tuple[tuple[str, str], ...] = ()
    folded: tuple[str, ...] = field(default=(), compare=False, repr=False)


def resolved(value: Any, batch: int) -> Any:
    """Return an argument with every law of the batch as the number it is for this batch size."""
    if isinstance(value, Grown):
        return value.factor * float(batch) ** value.power
    if isinstance(value, Logarithm):
        return value.base + value.factor * math.log(batch)
    if isinstance(value, Extent):
        return value.base + value.per_example * batch + value.per_pair * batch**2
    if isinstance(value, tuple):
        return tuple(resolved(item, batch) for item in value)
    return value


def extent(at_two: int, at_three: int) -> int | Extent:
    """Return the number that is these at batch sizes 2 and 3."""
    slope = at_three - at_two
    return Extent(at_two - 2 * slope, slope) if slope else at_two
