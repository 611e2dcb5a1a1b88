"""The page of `python -m benchmarks.validation --narrow`: 8-bit formats and smaller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.validation.narrow.rows import (
    NarrowRow,
    emulated,
    is_eight_bit,
    narrow_speedup,
    recipes_of,
)
from benchmarks.validation.narrow.scalings import ALL, SCALINGS, read_held_out
from policysearch.objective.published.row_file import built_of


@dataclass(frozen=True)
class Judged:
    """A row, its modeled speedup, and that by constants which no row of its recipe's family fits.

    A row without a recipe has one speedup, twice.
    """

    row: NarrowRow
    modeled: float
    unseen: float


Unbuilt = tuple[NarrowRow, str]


def judged_rows(rows: Sequence[NarrowRow]) -> tuple[list[Judged], list[Unbuilt]]:
    """Return the rows that can be built with their modeled speedups, and the others with why."""
    known = read_held_out()

    def judged(row: NarrowRow) -> Judged:
        recipes = recipes_of(row)
        family = SCALINGS[recipes[-1]].family if recipes else ALL
        modeled, unseen = (narrow_speedup(row, narrow=known[name]) for name in (ALL, family))
        return Judged(row, modeled, unseen)

    return built_of(rows, judged)


def narrow_page(judged: Sequence[Judged], unbuilt: Sequence[Unbuilt] = ()) -> str:
    """Return the page as text: every row, what could not be built, and absolute errors by kind."""
    lines = [f"{'row':>4} {'kind':10} {'model':36} {'device':16} published modeled error unseen"]
    lines += [_line(each) for each in judged]
    if unbuilt:
        lines += ["", "not built:"]
        lines += [f"{row.id:>4} {row.model}: {reason}" for row, reason in unbuilt]
    said = dict.fromkeys(line for each in judged for line in emulated(each.row))
    lines += ["", *said, *([""] if said else [])]
    eight = [each for each in judged if is_eight_bit(each.row)]
    for kind in dict.fromkeys(each.row.kind for each in judged):
        of_kind = [each for each in judged if each.row.kind == kind]
        lines += _errors(f"{kind}, 8 bits and below", [e for e in of_kind if e in eight])
        lines += _errors(f"{kind}, 16 over 32 bits", [e for e in of_kind if e not in eight])
    narrow = [each for each in eight if len(recipes_of(each.row)) == 2]
    lines += _errors("over a baseline of 8 bits", narrow)
    lines += _errors("MXFP8 over it", [e for e in narrow if recipes_of(e.row)[-1] == "mx"])
    parts = [each for each in eight if each.row.kind != "end-to-end"]
    lines += _errors("layers and gemms together, 8 bits and below", parts)
    if not eight:
        return "\n".join([*lines, "no row of 8 bits or below could be built"])
    seen, unseen = _absolute(eight)
    return "\n".join([*lines, f"mean absolute error {seen:.3f}, recipes held out {unseen:.3f}"])


def _line(judged: Judged) -> str:
    row, error = judged.row, judged.modeled - judged.row.speedup
    return (
        f"{row.id:>4} {row.kind:10} {row.model[:36]:36} {row.hardware[:16]:16} "
        f"{row.speedup:9.2f} {judged.modeled:7.2f} {error:+5.2f} {judged.unseen:6.2f}"
    )


def _errors(title: str, rows: Sequence[Judged]) -> list[str]:
    if not rows:
        return []
    below = [each for each in rows if each.row.speedup < 1]
    right = sum(each.modeled < 1 for each in below)
    seen, unseen = _absolute(rows)
    held = f", recipes held out {unseen:.3f}" if any(recipes_of(each.row) for each in rows) else ""
    return [
        f"{title}: {len(rows)} rows, mean absolute error {seen:.3f}{held}, "
        f"{right} of {len(below)} slower rows modeled slower"
    ]


def _absolute(rows: Sequence[Judged]) -> tuple[float, float]:
    """Return the mean absolute error, and that with recipes held out."""
    errors = [(e.modeled - e.row.speedup, e.unseen - e.row.speedup) for e in rows]
    seen, unseen = np.abs(errors).mean(axis=0).tolist()
    return seen, unseen
