"""The front of a study as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from policysearch.report.front_data import caption
from policysearch.search.results import Results, Row

HEADER = (
    "trial",
    "policy",
    "loss gap (least to most)",
    "val acc",
    "modeled speedup",
    "modeled memory",
)


def front_table(results: Results) -> str:
    """Return the front, fastest first, below a line on the study and above the caption."""
    rows = [row for row in results.rows() if row.on_front]
    diverged = sum(trial.diverged for trial in results.trials)
    head = (
        f"study {results.spec.study.name}: {len(results.trials)} policies trained, "
        f"{diverged} diverged, {len(rows)} on the front"
    )
    lines = aligned([HEADER, *(_cells(row) for row in rows)])
    return "\n".join([head, "", *lines, "", caption(results)])


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.trial),
        f"{row.policy} = {row.presets}" if row.presets not in ("", row.policy) else row.policy,
        f"{row.loss_gap:+.2e} ({row.loss_gap_low:+.1e} to {row.loss_gap_high:+.1e})",
        f"{row.validation_accuracy:.3f}",
        f"{row.modeled_speedup:.2f} ({row.modeled_speedup_low:.2f} to "
        f"{row.modeled_speedup_high:.2f})",
        f"{row.modeled_memory_ratio:.3f}",
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines, their columns padded to the widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
