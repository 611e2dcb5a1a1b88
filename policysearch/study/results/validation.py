"""Means over seeds: of the gap, and of the loss, accuracy and metric of the validation part.

Their interval is that of the mean over training seeds, at 95 %: how far another set of seeds would
move it. It says nothing of how few the validation labels are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policysearch.study.journal.trials import Trial
from policysearch.study.results.noise import Interval, intervals

GAP = "loss_gap"
SHOWN = ("validation_loss", "validation_accuracy", "metric")
"""The fields of a score that are measured on the validation part."""

OfMean = Interval | None
"""Of one policy; None with one seed."""
Intervals = Mapping[str, Mapping[int, OfMean]]
"""By field and number of the trial."""


def seed_intervals(trials: Sequence[Trial]) -> Intervals:
    """Return the intervals of the trials that trained, of the gap and what is in SHOWN.

    A trial that a run has no value of is left out.
    """
    sound = [trial for trial in trials if not trial.diverged]
    found = {}
    for name in (GAP, *SHOWN):
        known = {t.number: _known([getattr(s, name) for s in t.scores]) for t in sound}
        numbers = [number for number, values in known.items() if values]
        means = intervals([known[number] for number in numbers])
        found[name] = dict(zip(numbers, means, strict=True))
    return found


def bounds(found: Intervals, trial: Trial) -> dict[str, Any]:
    """Return the ends of the trial's intervals by the columns of its row."""
    ends: dict[str, Any] = {}
    for name in SHOWN:
        interval = found[name].get(trial.number)
        ends[f"{name}_low95"] = interval.low if interval else None
        ends[f"{name}_high95"] = interval.high if interval else None
    return ends


def words(found: Intervals, trial: Trial, unit: str, metric: str) -> list[str]:
    """Return a line for each thing that is measured: its mean and interval, in its unit."""
    why = "one seed" if len(trial.scores) == 1 else "a run diverged"
    named = {"validation_loss": f" {unit}", "validation_accuracy": "", "metric": ""}
    lines = []
    for name, counted_in in named.items():
        mean, interval = getattr(trial, name), found[name].get(trial.number)
        if mean is None:
            continue
        what = metric if name == "metric" else name.replace("_", " ")
        over = f"{interval.low:.4g} to {interval.high:.4g} at 95 % over seeds" if interval else ""
        lines.append(f"{what}: {mean:.4g}{counted_in}, {over or f'{why}, so no interval'}")
    return lines


def _known(values: Sequence[float | None]) -> list[float]:
    """Return the values if each is known, else none."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
