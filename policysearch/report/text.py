"""Cells and tables of text, alike on every page."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines, their columns padded to the widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def or_dash(value: float | None, places: int) -> str:
    """Return the value with so many places, "-" for None."""
    return "-" if value is None else f"{value:.{places}f}"


def figures(value: float | None) -> str:
    """Return a number with four figures, "-" for none."""
    return "-" if value is None else f"{value:.4g}"
