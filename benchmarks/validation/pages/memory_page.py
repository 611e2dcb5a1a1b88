"""The page of `python -m benchmarks.validation --memory`: every row, and simple rules beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.validation.validate_memory import JudgedMemory, MemoryValidation
from policysearch.cost.memory import CONTEXT_BYTES, GIB, VISIBLE_SHARE, visible_bytes
from policysearch.cost.roofline import Array
from policysearch.report.text import aligned

TITLES = (
    *("row", "network", "card", "mode", "batches", "published GiB", "modeled GiB", "live GiB"),
    *("published ratio", "modeled", "interval", "error", "live ratio"),
)


def memory_validation_page(found: MemoryValidation) -> str:
    """Return the page as text; its last line is the mean error of the ratio."""
    lines = ["memory of mixed over float32 training; each row by growths of other families", ""]
    lines += [*aligned([TITLES, *(_line(row) for row in found.read)]), ""]
    lines += _largest_lines(found)
    if found.unbuilt:
        lines += ["not built:"]
        lines += [f"{row.id:>5} {row.model}: {reason}" for row, reason in found.unbuilt] + [""]
    growth = found.growth
    lines += [
        f"growth, reserved over live: {growth.low:.3f} to {growth.high:.3f}, "
        f"expected {growth.expected:.3f}; context {CONTEXT_BYTES / GIB:.1f} GiB (assumed)",
        "",
    ]
    if not found.read:
        return "\n".join([*lines, "no row with readings could be built"])
    return "\n".join([*lines, *_whole(found.read)])


def _line(row: JudgedMemory) -> tuple[str, ...]:
    given, truth = row.setting.row, _published(row)
    assert given.gib is not None
    low, high = (row.ratio * factor for factor in row.interval)
    live = [bytes / GIB for bytes in row.live]
    return (
        given.id,
        given.model,
        given.hardware,
        given.mode + (f" {given.optimizer}" if given.optimizer else ""),
        "/".join(map(str, given.batches)),
        f"{given.gib[0]:.2f}/{given.gib[1]:.2f}",
        f"{row.gib[0]:.2f}/{row.gib[1]:.2f}",
        f"{live[0]:.2f}/{live[1]:.2f}",
        f"{truth:.3f}",
        f"{row.ratio:.3f}",
        f"{low:.2f}-{high:.2f}",
        f"{row.ratio / truth - 1:+.1%}",
        f"{row.live_ratio:.3f}",
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
    truth = np.array([_published(row) for row in rows])
    ratio = np.array([row.ratio for row in rows])
    live = np.array([row.live_ratio for row in rows])
    read = np.array([gib for row in rows for gib in row.setting.row.gib or ()])
    made = np.array([gib for row in rows for gib in row.gib])
    full = sum(
        gib > 0.93 * visible_bytes(row.setting.card_gib) / GIB
        for row in rows
        for gib in row.setting.row.gib or ()
    )
    held = [row.interval.low <= _published(row) / row.ratio <= row.interval.high for row in rows]
    unbounded = [
        (row.growth.expected * live + CONTEXT_BYTES) / GIB for row in rows for live in row.live
    ]
    return [
        f"peak: mean error {_mean(made, read):.1%}; without the bound of the card "
        f"({VISIBLE_SHARE:.1%} of its size) {_mean(np.array(unbounded), read):.1%}",
        f"of {len(read)} readings {full} lie within 7 % of the card's size: batches were raised "
        "until it was full",
        f"mean error of the ratio of live bytes {_mean(live, truth):.1%}, "
        f"of always 1 {_mean(np.ones_like(truth), truth):.1%}",
        f"larger in mixed precision: published {np.sum(truth > 1)}, modeled so of them "
        f"{np.sum((truth > 1) & (ratio > 1))}",
        f"the interval holds {np.mean(held):.0%} of the rows",
        f"mean error of the ratio {_mean(ratio, truth):.1%}",
    ]


def _mean(made: Array, truth: Array) -> float:
    return float(np.abs(made / truth - 1).mean())
