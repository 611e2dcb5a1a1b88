"""Published speedups on several devices over those on one, and what is modeled of that ratio."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.validation.narrow.rows import (
    NarrowRow,
    narrow_row_of,
    narrow_speedup,
    read_narrow_rows,
)
from policysearch.objective.published.aliases import Aliases
from policysearch.objective.published.graphs import recorded_price
from policysearch.objective.published.row_file import Fields, Read, read_file
from policysearch.objective.published.rows import (
    SHIPPED,
    Row,
    read_rows,
    row_of,
    setting_of,
)
from policysearch.values import InputError

T = TypeVar("T", Row, NarrowRow)


@dataclass(frozen=True)
class Ranks:
    """A row of several devices: its speedup over that of the like row of one device.

    `ratio` is published, `modeled` is modeled.
    """

    id: str
    model: str
    hardware: str
    devices: int
    ratio: float
    modeled: float

    @property
    def error(self) -> float:
        """Modeled over published, less one."""
        return self.modeled / self.ratio - 1


def ranks_of(
    path: Path | None = None, aliases: Aliases | None = None
) -> tuple[tuple[Ranks, ...], dict[str, list[str]], tuple[str, ...]]:
    """Return what is modeled of every row of several devices that has a like row of one.

    Of the JSON file at `path`, in either form of published rows, those of one device also from the
    package; None takes the rows of the package. Second, the ids of those left out by the reason;
    third, the rows that could not be read. InputError where the file cannot be read.
    """
    found: list[Ranks] = []
    left: dict[str, list[str]] = {}
    given: Read[Row | NarrowRow] = Read((), ())
    if path is not None:
        given = read_file(path, "", _either, aliases)
    narrow = [row for row in given.rows if isinstance(row, NarrowRow)]
    wide = [row for row in given.rows if isinstance(row, Row)]
    own_narrow = read_narrow_rows()
    own_wide = [row for name in SHIPPED for row in read_rows(shipped=name)]
    if path is None:
        narrow, wide = list(own_narrow), own_wide
    known = (*narrow, *own_narrow)
    _compared(narrow, known, _alike_narrow, narrow_speedup, found, left)
    _compared(wide, (*wide, *own_wide), _alike, spread_speedup, found, left)
    return tuple(found), left, given.refused


def _either(row: Fields) -> Row | NarrowRow:
    """Return a row in the form it has: those of 8-bit formats say what kind they are."""
    return narrow_row_of(row) if row.has("kind") else row_of(row)


def _compared(
    rows: Sequence[T],
    known: Sequence[T],
    alike: Callable[[T], tuple[object, ...]],
    speedup: Callable[[T], float],
    found: list[Ranks],
    left: dict[str, list[str]],
) -> None:
    for row in rows:
        if row.devices == 1:
            continue
        alone = [one for one in known if one.devices == 1 and alike(one) == alike(row)]
        if not alone:
            left.setdefault("no like row of one device", []).append(row.id)
            continue
        # of several, the one with the batches most like its own
        one = min(alone, key=lambda other: _far(other.batches, row.batches))
        try:
            modeled = speedup(row) / speedup(one)
        except InputError as error:
            left.setdefault(str(error), []).append(row.id)
            continue
        published = row.speedup / one.speedup
        found.append(Ranks(row.id, row.model, row.hardware, row.devices, published, modeled))


def _far(batches: tuple[int, int], other: tuple[int, int]) -> int:
    return sum(abs(a - b) for a, b in zip(batches, other, strict=True))


def _alike(row: Row) -> tuple[object, ...]:
    name = re.sub(r"[-_ ]", "", row.framework.lower())
    return row.model.lower(), name, row.hardware.lower(), row.length, row.formats


def _alike_narrow(row: NarrowRow) -> tuple[object, ...]:
    return row.kind, row.model.lower(), row.hardware.lower(), row.length, row.recipe, row.framework


def spread_speedup(row: Row) -> float:
    """Return the modeled speedup of a row on its devices: data parallel, float32 gradients.

    InputError says what of the row is not known.
    """
    setting = setting_of(row)
    times = [
        recorded_price(replace(run, devices=row.devices)).time.step_seconds for run in setting.runs
    ]
    return times[0] / times[1] * row.batches[1] / row.batches[0]
