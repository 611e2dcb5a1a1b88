"""What did not train, or will not hold, and why."""

from __future__ import annotations

from policysearch.report.page.element import Html, Section, joined, scrolled, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.words import typeset

SECTION = Section(70, "failed", "What failed, and why?", "Failed")

MOST_LINES = 60


def body(sight: Sight) -> Html | None:
    """Return one line per policy that diverged, failed or fails later; None before any training."""
    results = sight.results
    lost = [(t.number, t.label, t.divergence) for t in results.trials if t.diverged]
    lost += [(t.number, " ".join(t.presets) or t.name, t.reason) for t in results.failed]
    later = [
        (t.number, t.label, results.doubt(t))
        for t in results.trials
        if results.doubt(t) and not t.diverged
    ]
    if not results.trials and not lost:
        return None
    if not lost and not later:
        return tag("p", f"Everything trained to its end. {_later(sight)}")
    blocks = [
        _table(sight, "Did not train", lost),
        _table(sight, "Trains, and fails later or shows early signs of it", later),
    ]
    return joined(blocks)


def _later(sight: Sight) -> str:
    """Say what is known of longer trainings, where nothing speaks of failing there."""
    results = sight.results
    longer = sum(results.confirmation(trial) is not None for trial in results.trials)
    if longer:
        return f"Of {len(results.trials)} policies {longer} were trained longer, and held there."
    return (
        f"Whether anything fails after the {results.spec.task.steps} steps of the search is not "
        "known: nothing was trained longer."
    )


def _table(sight: Sight, title: str, rows: list[tuple[int, str, str]]) -> Html | None:
    if not rows:
        return None
    lines = [
        tag(
            "tr",
            tag("th", _number(sight, number), scope="row"),
            tag("td", name),
            tag("td", typeset(why)),
            data_t=number,
        )
        for number, name, why in rows[:MOST_LINES]
    ]
    head = tag("tr", *(tag("th", name, scope="col") for name in ("Trial", "Policy", "Why")))
    table = tag("table", tag("thead", head), tag("tbody", *lines), cls="list")
    more = len(rows) - MOST_LINES
    rest = (
        tag("p", f"And {more} more, in the table of all policies.", cls="note")
        if more > 0
        else None
    )
    return joined((tag("h3", f"{title} ({len(rows)})"), scrolled(table, title), rest))


def _number(sight: Sight, number: int) -> Html | str:
    href = sight.href(number)
    return tag("a", str(number), href=href) if href else str(number)
