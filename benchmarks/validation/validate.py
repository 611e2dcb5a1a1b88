"""How far modeled speedups lie from published ones, each judged by constants that never saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from benchmarks.validation.anchored import anchored, known_of
from benchmarks.validation.fit import speedups, steps_of
from benchmarks.validation.intervals import Interval, interval_of
from benchmarks.validation.published import Row, Setting, read_rows, setting_of
from benchmarks.validation.row_file import built_of
from policysearch.cost.roofline import Constants

TEXTBOOK = Constants(
    matrix_share=0.8,
    share_exponent=0.0,
    convolution_factor=1.0,
    plain_share=0.8,
    bandwidth_share=0.85,
    instructions_per_element=1e-9,
    winograd_gain=1.0,
    launch_factor=0.0,
)
"""A roofline as textbooks have it: four fifths of every peak, and no other limit."""


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


@dataclass(frozen=True)
class Validation:
    """All rows that could be built, those that could not with the reason, and what was fitted.

    `constants` are fitted to all rows that come with the package; `interval` is that of rows whose
    family was held out. `anchors` are those that could be built, each with its published speedup
    over the modeled one, `lost` the others with the reason.
    """

    judged: tuple[Judged, ...]
    unbuilt: tuple[tuple[Row, str], ...]
    constants: Constants
    interval: Interval
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
    known = known_of(settings_of(read_rows())[0])
    (built, unbuilt), (own, lost) = settings_of(rows), settings_of(anchors)
    left_out = [known.left_out(setting) for setting in built]
    said = anchored(known, built, left_out, own)
    if built:
        steps = steps_of(built)
        modeled, textbook = known.modeled(steps, left_out), speedups(steps, TEXTBOOK)
    judged = [
        Judged(
            setting,
            float(modeled[family][i] * said.factors[i]),
            said.intervals[i] or interval_of(known.ratios[known.families != family]),
            "family" if family or setting.network.family not in known.fits else "device",
            float(said.factors[i]) if said.intervals[i] else None,
            _peak_ratio(setting),
            float(textbook[i]),
        )
        for i, (setting, family) in enumerate(zip(built, left_out, strict=True))
    ]
    told = zip((setting.row for setting in own), said.ratios.tolist(), strict=True)
    interval = interval_of(known.ratios)
    return Validation(
        tuple(judged), tuple(unbuilt), known.constants, interval, tuple(told), tuple(lost)
    )


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
