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
    """Return the front, fastest first, below a line on the study and above the caption.

    Between them stands what did not train, and why.
    """
    rows = [row for row in results.rows() if row.on_front]
    lost = [trial for trial in results.trials if trial.diverged]
    head = (
        f"study {results.spec.study.name}: {len(results.trials) + len(results.failed)} policies "
        f"tried, {len(lost)} diverged, {len(results.failed)} failed, {len(rows)} on the front"
    )
    said = [f"trial {t.number}: {t.name}: {t.divergence}" for t in lost]
    said += [f"trial {t.number}: {t.name}: failed: {t.reason}" for t in results.failed]
    blocks = [[head], warnings(results), aligned([HEADER, *(_cells(row) for row in rows)]), said]
    return "\n\n".join("\n".join(block) for block in [*blocks, [caption(results)]] if block)


def warnings(results: Results) -> list[str]:
    """Return what makes the results worth less than they look, one line each."""
    fault = [f"warning: {results.float32_fault}"] * bool(results.float32_fault)
    return fault + [f"warning: results of both sides of a change: {c}" for c in results.mixed]


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
