"""What gets lost under one policy: values by layer, way and role; updates that vanish; skips."""

from __future__ import annotations

from collections.abc import Iterable

from policysearch.report.page.element import Html, Picture, joined, scrolled, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import shortened
from policysearch.report.page.words import percent
from policysearch.study.journal.trials import Trial
from policysearch.train.lost_values import LostValues

PICTURE = Picture(30, "What gets lost")

WAYS = (
    ("overflow", "fprop", "too large, forward"),
    ("overflow", "dgrad", "too large, backward inputs"),
    ("overflow", "wgrad", "too large, backward weights"),
    ("underflow", "fprop", "to zero, forward"),
    ("underflow", "dgrad", "to zero, backward inputs"),
    ("underflow", "wgrad", "to zero, backward weights"),
    ("born", "fprop", "not finite, forward"),
    ("born", "dgrad", "not finite, backward inputs"),
    ("born", "wgrad", "not finite, backward weights"),
    ("swamped", "update", "updates too small"),
    ("state", "update", "optimizer state unmoved"),
    ("decay", "update", "decay too small"),
)
"""(kind, role, words)."""

MOST_LINES = 14
MOST_STEPS = 8
MOST_BESIDE = 2
"""A table of more columns than these has the whole width."""

Sums = dict[str, dict[tuple[str, str], tuple[int, int]]]


def draw(sight: Sight, trial: Trial) -> Html:
    """Return a table of shares by layer; in words where nothing, or nothing by role, was lost."""
    sums = _sums(row for score in trial.scores for row in score.lost)
    ways = [way for way in WAYS if any(way[:2] in row for row in sums.values())]
    worst = sorted(sums, key=lambda name: -max(c / s for c, s in sums[name].values()))
    chosen = set(worst[:MOST_LINES])
    order = [*(name for name, _ in trial.policy.layers), *sums]
    shown = [name for name in dict.fromkeys(order) if name in chosen]
    lines = [_line(name, sums[name], ways) for name in shown]
    parts: list[Html | None] = []
    if lines:
        titles = [tag("th", said, scope="col") for _, _, said in ways]
        head = tag("tr", tag("th", "layer", scope="col"), *titles)
        kind = "heat many" if len(ways) > MOST_BESIDE else "heat"
        table = tag("table", tag("thead", head), tag("tbody", *lines), cls=kind)
        parts.append(scrolled(table, f"Lost values of trial {trial.number}"))
        more = len(sums) - len(lines)
        note = (
            "Share of the values looked at, before rounding, in the probed steps; a dot is none. "
            "Coloured from the first on, darker from 1%, red from 10% on."
        )
        parts.append(tag("figcaption", note + (f" {more} layers lost less." if more else "")))
    else:
        counted = any(score.overflows or score.underflows for score in trial.scores)
        why = (
            "It was not recorded by role: the runs are older."
            if counted
            else "Nothing, in the steps that were looked at."
        )
        parts.append(tag("p", why, cls="note"))
    parts += [_vanishing_updates(trial), _scale(sight, trial)]
    return joined(parts)


def _sums(rows: Iterable[LostValues]) -> Sums:
    """Return (lost, looked at) by layer, kind and role, over the seeds."""
    sums: Sums = {}
    for row in rows:
        at = sums.setdefault(row.layer or "loss and rest", {})
        count, seen = at.get((row.kind, row.role), (0, 0))
        at[row.kind, row.role] = count + row.count, seen + row.seen
    return sums


def _line(
    name: str, row: dict[tuple[str, str], tuple[int, int]], ways: list[tuple[str, str, str]]
) -> Html:
    cells = []
    for kind, role, _ in ways:
        count, seen = row.get((kind, role), (0, 0))
        share = count / seen if seen else 0.0
        level = 0 if not count else 1 + (share >= 0.01) + (share >= 0.1)
        cells.append(tag("td", percent(share) if count else "·", cls=f"h{level}"))
    return tag("tr", tag("th", shortened(name, 24), scope="row"), *cells)


def _vanishing_updates(trial: Trial) -> Html | None:
    """Say which share of the updates moved nothing, by probed step, and what that comes to."""
    runs = [score.swamped for score in trial.scores if score.swamped.shares]
    if not runs or not any(share for run in runs for _, share in run.shares):
        return None
    steps = [step for step, _ in runs[0].shares]
    every = max(1, -(-len(steps) // MOST_STEPS))
    tables = [dict(run.shares) for run in runs]
    means = [(s, sum(t.get(s, 0.0) for t in tables) / len(tables)) for s in steps[::every]]
    course = ", ".join(f"{percent(share)} in step {step}" for step, share in means)
    end = f"; {percent(trial.swamped_share)} at the smallest learning rate"
    worst = f", most in {trial.swamped_layer}" if trial.swamped_layer else ""
    return tag("p", tag("b", "Updates that move nothing: "), f"{course}{end}{worst}.", cls="note")


def _scale(sight: Sight, trial: Trial) -> Html | None:
    if trial.policy.loss_scale.kind == "none":
        return None
    first = trial.scores[0]
    moves = [f"{value:g} from step {step}" for step, value in first.scales[:6]]
    more = len(first.scales) - len(moves)
    course = ", ".join(moves) + (f" and {more} changes more" if more > 0 else "")
    skipped = f"{trial.skipped_steps} of {sight.results.spec.task.steps} steps skipped at most"
    said = f"{course or 'not recorded'}; {skipped}."
    return tag("p", tag("b", "Loss scale: "), said, cls="note")
