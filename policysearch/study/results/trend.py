"""Where a gap goes over a run: its points, absolute and beside float32's loss, and its trend.

A trend is the change from the middle of the run to its end, of the gap in nats and of the gap as a
share of float32's own loss at the same step. It is called growing or shrinking only where that
change, a mean over the seeds, differs from zero by more than its own 95 % interval allows (see
`results.noise`) and is larger than what counts as an effect at all; else the gap is flat. So is one
that stays below zero: a policy gains nothing by a loss below float32's. With one seed nothing is
called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policysearch.objective.score import CURVE_SHARES, GapCurve, share_of
from policysearch.study.journal.trials import Confirmation
from policysearch.study.results.noise import Interval, intervals

ONE_SEED = "one seed"


@dataclass(frozen=True)
class GapPoint:
    """A mean gap after so many steps, in nats and as a share of float32's own loss there."""

    steps: int
    gap: float | None = None
    relative: float | None = None


@dataclass(frozen=True)
class Trend:
    """The mean gap of one policy along its run, over seeds paired with float32.

    `points`: at those of CURVE_SHARES that every run reached. `gap` and `relative`: "growing",
    "shrinking" or "flat", "one seed" where there is no interval, "" where the run has no middle and
    end. `change` is that of the gap from the middle to the end, in nats, and `reach` its interval's
    half-width.
    """

    points: tuple[GapPoint, ...] = ()
    gap: str = ""
    relative: str = ""
    change: float | None = None
    reach: float | None = None


def points_of(steps: int) -> tuple[int, ...]:
    """Return the steps of a run at which gaps are kept, one for each of CURVE_SHARES."""
    return tuple(math.ceil(steps * share) for share in CURVE_SHARES)


def columns(trend: Trend, later: Trend, steps: int) -> dict[str, Any]:
    """Return the fields of `results.results.Row` on a run of `steps` and on the longer run."""
    known = {point.steps: point for point in trend.points}
    points = (known.get(taken, GapPoint(taken)) for taken in points_of(steps))
    eighth, quarter, half, end = points
    return {
        "gap_eighth": eighth.gap,
        "gap_quarter": quarter.gap,
        "gap_half": half.gap,
        "relative_gap_eighth": eighth.relative,
        "relative_gap_quarter": quarter.relative,
        "relative_gap_half": half.relative,
        "relative_gap": end.relative,
        "gap_trend": trend.gap,
        "relative_gap_trend": trend.relative,
        "confirmed_gap_trend": later.gap,
        "confirmed_relative_gap_trend": later.relative,
    }


def trends(curves: Sequence[Sequence[GapCurve]], steps: int, least: float) -> list[Trend]:
    """Return the trend of each policy from its curve per seed, over runs of `steps`.

    `least` is the smallest gap that counts, in nats.
    """
    ends = points_of(steps)[-2:]
    changes = [[_change(curve, ends) for curve in runs] for runs in curves]
    whole = [i for i, ends_of in enumerate(changes) if ends_of and None not in ends_of]
    pairs = [[pair for pair in changes[i] if pair is not None] for i in whole]
    absolute = intervals([[nats for nats, _, _ in row] for row in pairs]) if pairs else []
    relative = intervals([[share for _, share, _ in row] for row in pairs]) if pairs else []
    trends_of = [Trend(_points(runs)) for runs in curves]
    for i, row, nats, share in zip(whole, pairs, absolute, relative, strict=True):
        loss = math.fsum(loss for _, _, loss in row) / len(row)
        mean = math.fsum(change for change, _, _ in row) / len(row)
        points = trends_of[i].points
        gaps = [point.gap or 0.0 for point in points if point.steps in ends]
        words = _direction(nats, least, gaps), _direction(share, share_of(least, loss), gaps)
        trends_of[i] = Trend(points, *words, mean, nats.high - nats.mean if nats else None)
    return trends_of


def later_trends(confirmed: Sequence[tuple[str, Confirmation]], least: float) -> dict[str, Trend]:
    """Return by digest where gaps go over the longer runs, among those of equal length."""
    by_digest: dict[str, Trend] = {}
    for steps in {confirmation.steps for _, confirmation in confirmed}:
        alike = {digest: each.gap_curves for digest, each in confirmed if each.steps == steps}
        by_digest |= zip(alike, trends(list(alike.values()), steps, least), strict=True)
    return by_digest


def _change(curve: GapCurve, ends: Sequence[int]) -> tuple[float, float, float] | None:
    """Return how gap and relative gap change between the two steps, and float32's last loss."""
    points = {taken: (gap, share_of(gap, loss), loss) for taken, gap, loss in curve}
    if not all(end in points for end in ends):
        return None
    first, last = (points[end] for end in ends)
    return last[0] - first[0], last[1] - first[1], last[2]


def _points(curves: Sequence[GapCurve]) -> tuple[GapPoint, ...]:
    """Return the mean points of those steps that every curve has."""
    if not curves:
        return ()
    by_step = [{taken: (gap, loss) for taken, gap, loss in curve} for curve in curves]
    shared = [taken for taken in by_step[0] if all(taken in points_of for points_of in by_step)]
    points = []
    for taken in shared:
        gap = math.fsum(points_of[taken][0] for points_of in by_step) / len(by_step)
        loss = math.fsum(points_of[taken][1] for points_of in by_step) / len(by_step)
        points.append(GapPoint(taken, gap, share_of(gap, loss)))
    return tuple(points)


def _direction(change: Interval | None, least: float, gaps: Sequence[float]) -> str:
    """Return the word for a change between the two mean `gaps`."""
    if change is None:
        return ONE_SEED
    if change.holds_zero or abs(change.mean) <= least:
        return "flat"
    grows = change.mean > 0.0
    if gaps[1 if grows else 0] <= 0.0:
        return "flat"
    return "growing" if grows else "shrinking"
