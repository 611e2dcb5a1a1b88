"""The page of `python -m benchmarks.validation --memory`: every row, and simple rules beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.validation.validate_memory import FULL, JudgedMemory, MemoryValidation
from policysearch.cost.memory import CONTEXT_BYTES, GIB
from policysearch.cost.roofline import Array
from policysearch.report.text import aligned

TITLES = (
    *("row", "network", "card", "mode", "batches", "read", "GiB", "modeled GiB", "live GiB"),
    *("ratio", "modeled", "interval", "error"),
)


def memory_validation_page(found: MemoryValidation) -> str:
    """Return the page as text; its last line is the mean error of the ratio."""
    lines = ["memory of mixed over float32 training; each row by readings of other families", ""]
    lines += [*aligned([TITLES, *(_line(row) for row in found.read)]), ""]
    lines += _largest_lines(found)
    if found.unbuilt:
        lines += ["not built:"]
        lines += [f"{row.id:>5} {row.model}: {reason}" for row, reason in found.unbuilt] + [""]
    low, high = found.interval
    lines += [
        f"reserved over live: 1 + {found.fragments:.3f} x share of a block, "
        f"{low:.3f} to {high:.3f} times that; context {CONTEXT_BYTES / GIB:.1f} GiB",
        "",
    ]
    if not found.read:
        return "\n".join([*lines, "no row with readings could be built"])
    return "\n".join([*lines, *_whole(found.read)])


def _line(row: JudgedMemory) -> tuple[str, ...]:
    given, truth = row.setting.row, _published(row)
    assert given.gib is not None
    low, high = (row.ratio * factor for factor in row.ratios)
    live = [bytes / GIB for bytes in row.live]
    return (
        given.id,
        given.model,
        given.hardware,
        given.mode + (f" {given.optimizer}" if given.optimizer else ""),
        "/".join(map(str, given.batches)),
        given.read,
        f"{given.gib[0]:.2f}/{given.gib[1]:.2f}",
        f"{row.gib[0]:.2f}/{row.gib[1]:.2f}",
        f"{live[0]:.2f}/{live[1]:.2f}",
        f"{truth:.3f}",
        f"{row.ratio:.3f}",
        f"{low:.2f}-{high:.2f}",
        f"{row.ratio / truth - 1:+.1%}",
    )


def _published(row: JudgedMemory) -> float:
    gib = row.setting.row.gib
    assert gib is not None
    return gib[1] / gib[0]


def _largest_lines(found: MemoryValidation) -> list[str]:
    lines = []
    for row in found.judged:
        if row.largest:
            given = row.setting.row
            told = (
                f"{name} {batch}, modeled {sure} surely, {expected} expected, {most} at most"
                for name, batch, (sure, expected, most) in zip(
                    ("float32", given.mode), given.batches, row.largest, strict=True
                )
            )
            lines.append(
                f"{given.id:>5} {given.model} on {given.hardware}, largest batch: "
                + "; ".join(told)
            )
    return [*lines, ""] if lines else []


def _whole(rows: Sequence[JudgedMemory]) -> list[str]:
    fits = [may for row in rows for may in row.may_fit]
    truth = np.array([_published(row) for row in rows])
    ratio = np.array([row.ratio for row in rows])
    held = [row.ratios.low <= _published(row) / row.ratio <= row.ratios.high for row in rows]
    full = sum(reading.full for row in rows for reading in row.readings)
    lines = [_peaks(rows, what) for what in ("allocated", "reserved")]
    return [
        *(line for line in lines if line),
        f"full cards, from {FULL:.0%} on, which fit nothing: {full} readings",
        f"called not fitting for sure, though it ran: {fits.count(False)} of {len(fits)}",
        f"larger in mixed precision: published {np.sum(truth > 1)}, modeled so of them "
        f"{np.sum((truth > 1) & (ratio > 1))}",
        f"mean error of the ratio by always 1 {_mean(np.ones_like(truth), truth):.1%}, "
        f"the interval holds {np.mean(held):.0%} of the rows",
        f"mean error of the ratio {_mean(ratio, truth):.1%}",
    ]


def _peaks(rows: Sequence[JudgedMemory], what: str) -> str:
    """Return the errors of the readings of one kind on cards that were not full."""
    found = [
        (published, made, row.reserved)
        for row in rows
        for published, made, reading in zip(
            row.setting.row.gib or (), row.gib, row.readings, strict=False
        )
        if not reading.full and (reading.what == "allocated") == (what == "allocated")
    ]
    if not found:
        return ""
    truth, made = (np.array([row[i] for row in found]) for i in (0, 1))
    line = f"peak, {what}: {len(found)} readings, mean error {_mean(made, truth):.1%}"
    if what == "allocated":
        return line
    holds = [low <= published / modeled <= high for published, modeled, (low, high) in found]
    return f"{line}; the interval holds {np.mean(holds):.0%}"


def _mean(made: Array, truth: Array) -> float:
    return float(np.abs(made / truth - 1).mean())
