"""What anchors change in modeled speedups of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.roofline import Array
from policysearch.objective.published.anchors import Parts, carried, likeliest
from policysearch.objective.published.known import NONE, Errors, Interval, Known, interval_of
from policysearch.objective.published.rows import Setting
from policysearch.objective.published.steps import steps_of


@dataclass(frozen=True)
class Anchored:
    """What anchors make of modeled speedups: factors [rows], 1 where none is related.

    `intervals` are those on the scaled speedups, None where no anchor is related. `ratios` are
    published over modeled speedups of the anchors, [anchors], by constants fitted to all rows.
    """

    factors: Array
    intervals: tuple[Interval | None, ...]
    ratios: Array


def anchored(
    known: Known, settings: Sequence[Setting], left_out: Sequence[str], anchors: Sequence[Setting]
) -> Anchored:
    """Return what the anchors say of rows, each judged without a family.

    Errors of the anchors are those of the constants that judge the row, and how much rows have in
    common is what the package's rows show, without that family too. The interval is that of the
    package's rows, family and device held out, in standard deviations.
    """
    factors = np.ones(len(settings))
    intervals: list[Interval | None] = [None] * len(settings)
    if not anchors:
        return Anchored(factors, tuple(intervals), np.zeros(0))
    usable = usable_for(settings, anchors)
    parts = {name: _parts(known, name) for name in {*left_out, *known.fits}}
    scores = _scores(known, parts)
    published = np.array([anchor.row.speedup for anchor in anchors])
    modeled = known.modeled(steps_of(anchors), {*left_out, NONE})
    for name in dict.fromkeys(left_out):
        rows = [i for i, other in enumerate(left_out) if other == name]
        errors = np.log(published / modeled[name])
        said = carried([settings[i] for i in rows], anchors, errors, parts[name], usable[rows])
        factors[rows] = np.exp(said.shift)
        for i, spread, related in zip(rows, said.spread, said.anchored, strict=True):
            if related:
                intervals[i] = interval_of(Errors(np.exp(scores * spread)))
    return Anchored(factors, tuple(intervals), published / modeled[NONE])


def usable_for(settings: Sequence[Setting], anchors: Sequence[Setting]) -> NDArray[np.bool_]:
    """Return which anchors may say something of which rows, [rows, anchors].

    A row is held out with all rows of its device that are judged beside it; a measurement on that
    device that is not among them counts.
    """
    judged = {replace(setting.row, id="") for setting in settings}
    beside = np.array([replace(anchor.row, id="") in judged for anchor in anchors], np.bool_)
    mine, theirs = (np.array([s.device.name for s in rows]) for rows in (settings, anchors))
    return np.asarray(~(beside & (mine[:, None] == theirs)))


def _parts(known: Known, left_out: str) -> Parts:
    rows = np.flatnonzero(known.families != left_out)
    return likeliest([known.settings[i] for i in rows], np.log(known.ratios[rows]))


def _scores(known: Known, parts: Mapping[str, Parts]) -> Array:
    """Return the errors that anchors leave in the package's rows, in standard deviations, [rows].

    Each row is held out with its family and its device; rows without anchors have no part in it.
    """
    errors, scores = np.log(known.ratios), []
    usable = usable_for(known.settings, known.settings)
    for name in known.fits:
        rows = np.flatnonzero(known.families == name)
        settings = [known.settings[i] for i in rows]
        said = carried(settings, known.settings, errors, parts[name], usable[rows])
        scores.append(((errors[rows] - said.shift) / said.spread)[said.anchored])
    return np.concatenate(scores)
