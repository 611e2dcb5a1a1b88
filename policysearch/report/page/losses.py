"""How one policy trains: its loss beside float32's, in the study's run and the longer one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policysearch.objective.score import GapCurve
from policysearch.report.page.element import Html, Picture, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import (
    Axis,
    key,
    label,
    level_grid,
    line,
    polyline,
    svg,
    titled,
    upright_grid,
)
from policysearch.report.page.words import power, typeset
from policysearch.study.journal.trials import Confirmation, Trial

PICTURE = Picture(20, "How it trains")

Points = list[tuple[float, float]]


def draw(sight: Sight, trial: Trial) -> Html | None:
    """Return both losses, means over the seeds; None where no run kept any."""
    return drawn(trial, sight.results.confirmation(trial))


def drawn(trial: Trial, confirmed: Confirmation | None = None) -> Html | None:
    """Return the losses of a trial beside float32's, and those of its longer run."""
    mine = mean([score.losses for score in trial.scores])
    theirs = mean([score.float32_losses for score in trial.scores])
    if not mine:
        mine, theirs = _of_curves([score.gap_curve for score in trial.scores])
    later, later32 = _of_curves(confirmed.gap_curves) if confirmed else ([], [])
    every = [*mine, *theirs, *later, *later32]
    if not every:
        return None
    x = Axis(1.0, max(step for step, _ in every) * 1.05, 50, 424, log=True)
    y = _axis([value for _, value in every])
    lines = [(theirs, "loss32"), (later32, "loss32"), (mine, "loss"), (later, "loss")]
    picture = svg(
        440,
        250,
        level_grid(y, 50, 424, lambda v: power(v, 0) if y.log else f"{v:g}"),
        upright_grid(x, 22, 208, lambda v: f"{v:g}"),
        label(0, 12, f"training loss, {trial.loss_unit}{' (log)' if y.log else ''}", "axis"),
        label(237, 246, "steps (log)", "axis", "middle"),
        *(
            titled(
                polyline([(x(s), y(v)) for s, v in points], cls),
                f"{'this policy' if cls == 'loss' else 'float32'}, {points[-1][0]:g} steps: "
                f"ends at {power(points[-1][1])} {trial.loss_unit}",
            )
            for points, cls in lines
            if points
        ),
        label=_said(mine, theirs),
    )
    end = f" It diverged: {trial.divergence}." if trial.diverged else ""
    longer = " The second pair is the longer run." if later else ""
    means = f"Means over {len(trial.scores)} seeds" if len(trial.scores) > 1 else "One seed"
    keys = (
        key("this policy", line(0, 7, 18, 7, "loss")),
        key("float32", line(0, 7, 18, 7, "loss32")),
    )
    legend = tag("ul", *keys, cls="legend")
    return joined((picture, legend, tag("figcaption", typeset(f"{means}.{longer}{end}"))))


def mean(runs: Sequence[Sequence[tuple[int, float]]]) -> Points:
    """Return (steps, mean loss) at the steps that all runs kept."""
    tables = [dict(run) for run in runs]
    if not tables or not all(tables):
        return []
    shared = set(tables[0]).intersection(*tables[1:])
    return [(float(s), math.fsum(t[s] for t in tables) / len(tables)) for s in sorted(shared)]


def _of_curves(curves: Sequence[GapCurve]) -> tuple[Points, Points]:
    """Return both losses at the few points that older records, and longer runs, have."""
    mine = mean([[(step, base + gap) for step, gap, base in curve] for curve in curves])
    return mine, mean([[(step, base) for step, _, base in curve] for curve in curves])


def _axis(values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if low > 0.0:
        return Axis(low / 1.3, high * 1.2, 208, 22, log=high > 8.0 * low)
    margin = 0.08 * (high - low or 1.0)
    return Axis(low - margin, high + margin, 208, 22)


def _said(mine: Points, theirs: Points) -> str:
    ends = [
        f"{who} ends at {power(p[-1][1])}"
        for who, p in (("policy", mine), ("float32", theirs))
        if p
    ]
    return f"Training loss over the steps: {', '.join(ends)}"
