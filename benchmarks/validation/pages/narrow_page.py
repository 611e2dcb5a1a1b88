"""The page of `python -m benchmarks.validation --narrow`: 8-bit formats and smaller."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.validation.narrow.rows import NarrowRow, emulated, is_eight_bit, narrow_speedup
from policysearch.objective.published.row_file import built_of

Judged = tuple[NarrowRow, float]

Unbuilt = tuple[NarrowRow, str]


def judged_rows(rows: Sequence[NarrowRow]) -> tuple[list[Judged], list[Unbuilt]]:
    """Return the rows that can be built with their modeled speedups, and the others with why."""
    return built_of(rows, lambda row: (row, narrow_speedup(row)))


def narrow_page(judged: Sequence[Judged], unbuilt: Sequence[Unbuilt] = ()) -> str:
    """Return the page as text: every row, what could not be built, and absolute errors by kind."""
    lines = [f"{'row':>4} {'kind':10} {'model':36} {'device':16} published modeled error"]
    lines += [_line(row, modeled) for row, modeled in judged]
    if unbuilt:
        lines += ["", "not built:"]
        lines += [f"{row.id:>4} {row.model}: {reason}" for row, reason in unbuilt]
    said = dict.fromkeys(line for row, _ in judged for line in emulated(row))
    lines += ["", *said, *([""] if said else [])]
    for kind in dict.fromkeys(row.kind for row, _ in judged):
        of_kind = [pair for pair in judged if pair[0].kind == kind]
        lines += _errors(f"{kind}, 8 bits and below", [p for p in of_kind if is_eight_bit(p[0])])
        lines += _errors(f"{kind}, 16 over 32 bits", [p for p in of_kind if not is_eight_bit(p[0])])
    eight = [pair for pair in judged if is_eight_bit(pair[0])]
    parts = [pair for pair in eight if pair[0].kind != "end-to-end"]
    lines += _errors("layers and gemms together, 8 bits and below", parts)
    if not eight:
        return "\n".join([*lines, "no row of 8 bits or below could be built"])
    return "\n".join([*lines, f"mean absolute error {_absolute(eight):.3f}"])


def _line(row: NarrowRow, modeled: float) -> str:
    return (
        f"{row.id:>4} {row.kind:10} {row.model[:36]:36} {row.hardware[:16]:16} "
        f"{row.speedup:9.2f} {modeled:7.2f} {modeled - row.speedup:+5.2f}"
    )


def _errors(title: str, rows: Sequence[Judged]) -> list[str]:
    if not rows:
        return []
    below = [(row, modeled) for row, modeled in rows if row.speedup < 1]
    right = sum(modeled < 1 for _, modeled in below)
    return [
        f"{title}: {len(rows)} rows, mean absolute error {_absolute(rows):.3f}, "
        f"{right} of {len(below)} slower rows modeled slower"
    ]


def _absolute(rows: Sequence[Judged]) -> float:
    return float(np.mean([abs(modeled - row.speedup) for row, modeled in rows]))
