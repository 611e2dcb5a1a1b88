"""What the training runs of one policy showed, as text: lost values, the loss scale, the trend."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

from policysearch.objective.score import Score
from policysearch.report.table import aligned
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.study.results.trend import ONE_SEED, Trend
from policysearch.train.lost_values import LostValues

KINDS = ("overflow", "underflow", "swamped")
ROLES = ("fprop", "dgrad", "wgrad", "update")

SHOWN_CHANGES = 6
"""So many of the first changes of a loss scale, and of the first skips, are written out."""


def lost_lines(trial: Trial) -> list[str]:
    """Return one line per kind, layer and role that lost values, summed over the seeds."""
    rows = _summed(row for score in trial.scores for row in score.lost)
    if not rows:
        counted = any(score.overflows or score.underflows for score in trial.scores)
        said = "not recorded by role, for the runs are older" if counted else "none"
        return [f"values lost in the probed steps: {said}"]
    titles = ("lost", "layer", "role", "count", "of those looked at", "first step", "largest")
    cells = [
        (
            row.kind,
            row.layer or "(no layer)",
            row.role,
            str(row.count),
            f"{100.0 * row.count / row.seen:.2g}%",
            str(row.first_step),
            f"{row.largest:.3g}",
        )
        for row in sorted(rows, key=_place)
    ]
    return ["values lost in the probed steps, before rounding:", *aligned([titles, *cells])]


def _place(row: LostValues) -> tuple[int, str, int]:
    known = {role: place for place, role in enumerate(ROLES)}
    return KINDS.index(row.kind), row.layer, known.get(row.role, -1)


def _summed(rows: Iterable[LostValues]) -> list[LostValues]:
    """Return the rows of several runs as those of one."""
    found: dict[tuple[str, str, str], LostValues] = {}
    for row in rows:
        key = row.kind, row.layer, row.role
        old = found.get(key)
        found[key] = row if old is None else _joined(old, row)
    return list(found.values())


def _joined(one: LostValues, other: LostValues) -> LostValues:
    return LostValues(
        one.kind,
        one.layer,
        one.role,
        one.count + other.count,
        one.seen + other.seen,
        min(one.first_step, other.first_step),
        max(one.largest, other.largest),
    )


def scale_lines(results: Results, trial: Trial) -> list[str]:
    """Return how the loss scale moved and which steps were skipped, one line per seed."""
    if trial.policy.loss_scale.kind == "none":
        return []
    return [
        f"seed {seed}: {_scale(score)}; {_skips(score)}"
        for seed, score in zip(trial.seeds, trial.scores, strict=True)
    ]


def _scale(score: Score) -> str:
    if not score.scales:
        return "loss scale not recorded"
    values = [value for _, value in score.scales]
    if len(values) == 1:
        return f"loss scale {_power(values[0])} throughout"
    moves = [f"{_power(value)} from step {step}" for step, value in score.scales[:SHOWN_CHANGES]]
    more = len(values) - len(moves)
    said = ", ".join(moves) + (f" and {more} changes more" if more else "")
    ups = sum(old < new for old, new in pairwise(values))
    return (
        f"loss scale first {_power(values[0])}, last {_power(values[-1])}, lowest "
        f"{_power(min(values))}, highest {_power(max(values))}, raised {ups}x, "
        f"lowered {len(values) - 1 - ups}x ({said})"
    )


def _power(scale: float) -> str:
    """Return a scale as the power of two that it nearly always is."""
    fraction, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if fraction == 0.5 else f"{scale:g}"


def _skips(score: Score) -> str:
    if not score.skipped_steps:
        return "no step skipped"
    if not score.skips:
        return f"{score.skipped_steps} steps skipped"
    first = ", ".join(str(step) for step in score.skips[:SHOWN_CHANGES])
    more = len(score.skips) - SHOWN_CHANGES
    last = f" and {more} more, the last {score.skips[-1]}" if more > 0 else ""
    return f"{score.skipped_steps} skipped: steps {first}{last}"


def trend_lines(results: Results, trial: Trial) -> list[str]:
    """Return the gap along the study's run and along the longer one, and where it goes."""
    runs = [("over the study's run", results.trend(trial))]
    runs.append(("over the longer run", results.confirmed_trend(trial)))
    return [line for where, trend in runs if trend.points for line in _course(where, trend)]


def _course(where: str, trend: Trend) -> list[str]:
    titles = ("steps", *(str(point.steps) for point in trend.points))
    gaps = ("gap, nats", *(f"{point.gap:+.2e}" for point in trend.points))
    shares = ("of float32's loss there", *(f"{point.relative:+.2%}" for point in trend.points))
    return [f"gap {where}: {direction(trend)}", *aligned([titles, gaps, shares])]


def direction(trend: Trend) -> str:
    """Say where the gap goes from the middle of a run to its end, and by how much."""
    if trend.change is None:
        return "no trend, for the run has no middle and end"
    moved = f"{trend.change:+.1e} nats from the middle to the end"
    if trend.gap == ONE_SEED or trend.reach is None:
        return f"{moved}; one seed, so no trend is called"
    return f"{trend.gap} ({moved}, +- {trend.reach:.1e}); beside float32's loss {trend.relative}"
