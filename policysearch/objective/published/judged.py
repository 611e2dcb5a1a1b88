"""How far modeled speedups lie from published ones, each judged by constants that never saw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from policysearch.cost.roofline import Constants
from policysearch.objective.published.anchored import anchored
from policysearch.objective.published.known import NONE, Interval, Known, interval_of, read_known
from policysearch.objective.published.row_file import built_of
from policysearch.objective.published.rows import Row, Setting, setting_of


@dataclass(frozen=True)
class Judged:
    """A published row with its modeled speedup, and what simple rules would have said.

    `unseen` says what the constants had not seen: its family or its device. `factor` is that of
    its anchors, in `speedup` already, None where none is related. `peak_ratio` is that of the
    formats' peaks, `roofline` that of TEXTBOOK constants on the same layers.
    """

    setting: Setting
    speedup: float
    interval: Interval
    unseen: str
    factor: float | None
    peak_ratio: float
    roofline: float

    @property
    def anchored(self) -> bool:
        """Whether an anchor is related."""
        return self.factor is not None

    @property
    def error(self) -> float:
        """Modeled over published speedup, less one."""
        return self.speedup / self.setting.row.speedup - 1

    @property
    def holds(self) -> bool:
        """Whether the published speedup lies in the interval."""
        low, high = (self.speedup * factor for factor in self.interval)
        return low <= self.setting.row.speedup <= high


@dataclass(frozen=True)
class Summary:
    """Errors of a set of rows: relative, as shares; `rank` is Spearman's, ties averaged."""

    rows: int
    mean: float
    p90: float
    bias: float
    rank: float
    covered: float


ALL = "all"


@dataclass(frozen=True)
class Crossed:
    """The package's rows by constants that saw none of their group: `what` groups they are.

    `summaries` are by group, and of ALL. `times` is how many step times are of a known unit;
    `time_error` is their mean error.
    """

    what: str
    summaries: Mapping[str, Summary]
    times: int
    time_error: float


@dataclass(frozen=True)
class Validation:
    """All rows that could be built, those that could not with the reason, and what was fitted.

    `constants` are fitted to all rows that come with the package; `intervals` are those of rows
    whose family or device was held out, on devices with numbers of what they achieve and on others.
    `crossed` are the package's rows by what was held out. `anchors` are those that could be built,
    each with its published speedup over the modeled one, `lost` the others with the reason.
    """

    judged: tuple[Judged, ...]
    unbuilt: tuple[tuple[Row, str], ...]
    constants: Constants
    intervals: tuple[Interval, Interval]
    crossed: tuple[Crossed, ...]
    anchors: tuple[tuple[Row, float], ...] = ()
    lost: tuple[tuple[Row, str], ...] = ()


def settings_of(rows: Sequence[Row]) -> tuple[list[Setting], list[tuple[Row, str]]]:
    """Return the settings of the rows that can be built, and the others with the reason."""
    return built_of(rows, setting_of)


def validate(rows: Sequence[Row], anchors: Sequence[Row] = ()) -> Validation:
    """Return the rows judged.

    A row's constants are fitted to the rows that come with the package, without its family where
    its device is among theirs; where it is not, the device itself is what they have not seen.
    With `anchors` each speedup is scaled by what related rows showed on other devices.
    """
    known = read_known()
    (built, unbuilt), (own, lost) = settings_of(rows), settings_of(anchors)
    left_out = [known.left_out(setting) for setting in built]
    said = anchored(known, built, left_out, own)
    modeled, textbook = known.judged(built, left_out)
    judged = [
        Judged(
            setting,
            float(modeled[i] * said.factors[i]),
            said.intervals[i] or known.interval(family or setting.device.name, setting.device),
            "family" if family or setting.network.family not in known.fits else "device",
            float(said.factors[i]) if said.intervals[i] else None,
            _peak_ratio(setting),
            float(textbook[i]),
        )
        for i, (setting, family) in enumerate(zip(built, left_out, strict=True))
    ]
    told = zip((setting.row for setting in own), said.ratios.tolist(), strict=True)
    return Validation(
        tuple(judged),
        tuple(unbuilt),
        known.constants,
        (interval_of(known.errors(NONE, True)), interval_of(known.errors(NONE, False))),
        crossed(known),
        tuple(told),
        tuple(lost),
    )


def crossed(known: Known) -> tuple[Crossed, ...]:
    """Return how far the package's rows lie from modeled ones, families and devices held out."""
    truth = known.steps.speedups
    found = []
    for what, groups, ratios, seconds in (
        ("families", known.steps.families, known.ratios, known.seconds),
        ("devices", known.steps.devices, known.device_ratios, known.device_seconds),
    ):
        kinds = [
            (group, bool(setting.device.achieved))
            for group, setting in zip(groups, known.settings, strict=True)
        ]
        spans = {kind: interval_of(known.errors(*kind)) for kind in set(kinds)}
        holds = [
            low <= ratio <= high
            for (low, high), ratio in zip((spans[kind] for kind in kinds), ratios, strict=True)
        ]
        in_samples = seconds / known.steps.seconds
        timed = np.isfinite(in_samples) & (in_samples > 1 / 3) & (in_samples < 3)
        summaries = {}
        for name in (*dict.fromkeys(groups), ALL):
            rows = [i for i, group in enumerate(groups) if name in (ALL, group)]
            modeled = (truth[rows] / ratios[rows]).tolist()
            summaries[name] = summary(truth[rows].tolist(), modeled, [holds[i] for i in rows])
        error = float(np.abs(in_samples[timed] - 1).mean())
        found.append(Crossed(what, summaries, int(timed.sum()), error))
    return tuple(found)


def _peak_ratio(setting: Setting) -> float:
    wide, narrow = (setting.device.runs_as(p.products) for p in setting.precisions)
    return setting.device.peak(narrow) / setting.device.peak(wide)


def summary(published: Sequence[float], modeled: Sequence[float], held: Sequence[bool]) -> Summary:
    """Return the errors of modeled speedups, `held` whether their intervals hold."""
    truth, guess = np.array(published), np.array(modeled)
    errors = guess / truth - 1
    varied = len(set(truth)) > 1 and len(set(guess)) > 1
    return Summary(
        len(truth),
        float(np.abs(errors).mean()),
        float(np.quantile(np.abs(errors), 0.9)),
        float(np.median(errors)),
        float(spearmanr(truth, guess).statistic) if varied else float("nan"),
        float(np.mean(held)),
    )
