"""All policies of a study: found, sorted and downloaded by a little script."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from policysearch.report.page.element import Html, Section, joined, scrolled, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import named
from policysearch.report.page.words import gap, percent
from policysearch.study.results.rows import Row

SECTION = Section(80, "every", "All policies", "All policies")

TITLES = ("Trial", "Policy", "Loss gap", "Speed", "Memory", "Accuracy", "Where it stands")

SHOWN: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("", str),
    ("", str),
    ("nats", gap),
    ("× float32", lambda value: f"{value:.2f}"),
    ("× float32", lambda value: f"{value:.2f}"),
    ("", percent),
    ("", str),
)
"""By column its unit and how its numbers are written; page.js writes them so too."""

MOST_LETTERS = 200
MOST_LINES = 100
"""So many lines are written out, or shown at a time: finding has to feel instant."""


def body(sight: Sight) -> Html | None:
    """Return the table, and all rows as data."""
    rows = [_cells(sight, row) for row in sight.rows]
    rows += [
        [t.number, " ".join(t.presets) or t.name, None, None, None, None, f"failed: {t.reason}"]
        for t in sight.results.failed
    ]
    if not rows:
        return None
    head = [
        tag(
            "th",
            tag("button", name, type="button", cls="script"),
            tag("span", name, cls="plain"),
            tag("span", unit.replace("nats", sight.results.unit), cls="unit") if unit else None,
            scope="col",
        )
        for name, (unit, _) in zip(TITLES, SHOWN, strict=True)
    ]
    lines = [_line(sight, cells) for cells in rows[:MOST_LINES]]
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *lines), cls="list")
    said = f"{len(rows)} policies"
    if len(rows) > MOST_LINES:
        said += f", the first {MOST_LINES} shown"
    tools = tag(
        "div",
        tag("label", "Find ", tag("input", id="find", type="search", autocomplete="off")),
        tag("button", "Download CSV", id="csv", type="button"),
        tag("span", said, id="count", role="status"),
        cls="tools script",
    )
    note = tag(
        "p",
        f"{said}. All of them as CSV: ",
        tag("code", sight.command("show {0} --csv")),
        cls="note",
    )
    return joined((note, tools, scrolled(table, "Table of all policies"), _data(sight, rows)))


def _cells(sight: Sight, row: Row) -> list[Any]:
    return [
        row.trial,
        row.label,
        None if row.diverged else _six(row.loss_gap),
        _six(row.modeled_speedup),
        _six(row.modeled_memory_ratio),
        None if row.validation_accuracy is None else _six(row.validation_accuracy),
        sight.state(row),
    ]


def _six(value: float) -> float:
    return float(f"{value:.6g}")


def _line(sight: Sight, cells: list[Any]) -> Html:
    number, *others = cells
    presets = sight.row[number].presets if number in sight.row else ""
    others[0] = named(presets, others[0], MOST_LETTERS)
    href = sight.href(number)
    first = tag("th", tag("a", str(number), href=href) if href else str(number), scope="row")
    shown = [
        tag(
            "td",
            "–" if v is None else say(v) if isinstance(v, float) else v,
            cls="number" if isinstance(v, float) or v is None else None,
        )
        for v, (_, say) in zip(others, SHOWN[1:], strict=True)
    ]
    return tag("tr", first, *shown, data_t=number)


def _data(sight: Sight, rows: list[list[Any]]) -> Html:
    """Return the rows as JSON in which nothing ends the element it stands in."""
    plain = {
        "name": sight.results.spec.study.name,
        "head": list(TITLES),
        "linked": sorted(sight.linked),
        "most": MOST_LINES,
        "rows": rows,
    }
    dumped = json.dumps(plain, separators=(",", ":"))  # ASCII alone
    for letter in "<>&":
        dumped = dumped.replace(letter, f"\\u{ord(letter):04x}")
    return tag("script", Html(dumped), type="application/json", id="rows")
