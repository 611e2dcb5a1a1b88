"""How it was searched: how the front grew, why the search stopped, and what it added."""

from __future__ import annotations

from policysearch.report.page.element import Child, Html, Section, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import (
    Axis,
    dots,
    label,
    level_grid,
    polyline,
    svg,
    titled,
    upright_grid,
)
from policysearch.report.page.words import seconds, times, typeset
from policysearch.report.table import search_lines
from policysearch.study.results.results import Results

SECTION = Section(60, "search", "How was it searched?", "Search")


def body(sight: Sight) -> Html | None:
    """Return the picture of the best found so far, and the search in words."""
    results = sight.results
    if not results.trials and not results.failed:
        return tag("p", "No policy has been trained to its end yet.")
    every = [typeset(line) for line in search_lines(results)]
    lines = [tag("li", f"{line[0].upper()}{line[1:]}.") for line in every]
    if not results.stopped:
        lines.insert(0, tag("li", "The search has not ended."))
    made = results.provenance
    if made.trained_seconds:
        took = seconds(made.trained_seconds)
        said = f"{made.runs} trainings took {took} of wall clock in all, each in its process."
        lines.append(tag("li", said))
    ways = tag("ul", *lines)
    return tag("div", _course(results), tag("div", ways), cls="two")


def best_so_far(results: Results) -> list[tuple[int, float]]:
    """Return (policies trained, highest modeled speedup among those that hold at no cost)."""
    points, best = [], 0.0
    ordered = sorted(results.trials, key=lambda trial: trial.number)
    limit = results.matters_gap or float("inf")
    for place, trial in enumerate(ordered, 1):
        sound = not trial.diverged and not results.doubt(trial)
        if sound and results.counted_gap(trial) <= max(limit, results.resolution_gap):
            best = max(best, trial.cost.speedup)
        if best:
            points.append((place, best))
    return points


def _course(results: Results) -> Html:
    if results.cannot_rank:
        return tag("p", "Nothing is ranked here, so that no policy is the best so far.", cls="note")
    points = best_so_far(results)
    if not points:
        return tag("p", "No policy that holds at no cost that matters yet.", cls="note")
    x = Axis(0.0, float(len(results.trials)), 46, 424)
    high = max(value for _, value in points)
    y = Axis(min(1.0, points[0][1]) - 0.05, high + 0.08 * high, 180, 22)
    steps: list[tuple[float, float]] = []
    for place, value in points:
        if steps:
            steps.append((x(place), steps[-1][1]))
        steps.append((x(place), y(value)))
    longer = any(results.confirmation(trial) for trial in results.trials)
    holds = "that holds" if longer else "at no gap that matters"
    known = " and that holds, as is known now" if longer else ", not trained longer yet"
    starts = {t.number for t in results.trials if t.start}
    ordered = sorted(results.trials, key=lambda trial: trial.number)
    rose = [p for p, (_, v) in enumerate(points) if not p or v > points[p - 1][1]]
    parts: list[Child] = [
        level_grid(y, 46, 424, lambda v: f"{v:g}×", 4),
        upright_grid(x, 22, 180, lambda v: f"{v:g}", 5),
        label(0, 12, f"best speed {holds}, modeled", "axis"),
        label(235, 216, "policies trained", "axis", "middle"),
        polyline(steps, "step"),
        *(_rise(x(points[p][0]), y(points[p][1]), *points[p]) for p in rose),
    ]
    begun = sum(trial.number in starts for trial in ordered)
    said = f"Best speed {holds}: {points[0][1]:.2f} at first, {points[-1][1]:.2f} at the end"
    note = (
        f"Line: the fastest policy found so far whose gap does not matter{known}; a dot where a "
        f"faster one was found. {begun} of {len(ordered)} were presets and uniform formats, with "
        "which a search begins."
    )
    return tag("figure", svg(440, 222, *parts, label=said), tag("figcaption", note))


def _rise(x: float, y: float, count: int, speed: float) -> Html:
    dot = dots([(x, y)], "dot-other") or Html()
    return titled(dot, f"after {count} policies: {times(speed)} float32")
