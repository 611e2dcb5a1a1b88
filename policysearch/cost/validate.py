"""How far modeled speedups lie from published ones, each judged by constants that never saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from policysearch.cost.anchors import Anchor, anchors_of, scale
from policysearch.cost.fit import Steps, fit, held_out, speedups, steps_of
from policysearch.cost.published import Row, Setting, read_rows, setting_of
from policysearch.cost.roofline import Array, Constants
from policysearch.values import InputError

COVERAGE = 0.8
"""Share of rows that an interval is meant to hold."""

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


class Interval(NamedTuple):
    """Factors on a modeled speedup between which the published one lies in COVERAGE of rows."""

    low: float
    high: float


@dataclass(frozen=True)
class Judged:
    """A published row with its modeled speedup, and what simple rules would have said.

    `constants_from` says what the constants had not seen: its family or its device. `peak_ratio`
    is that of the formats' peaks, `roofline` that of TEXTBOOK constants on the same layers.
    """

    setting: Setting
    speedup: float
    interval: Interval
    unseen: str
    anchored: bool
    peak_ratio: float
    roofline: float

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
    family was held out.
    """

    judged: tuple[Judged, ...]
    unbuilt: tuple[tuple[Row, str], ...]
    constants: Constants
    interval: Interval
    anchored_interval: Interval


def settings_of(rows: Sequence[Row]) -> tuple[list[Setting], list[tuple[Row, str]]]:
    """Return the settings of the rows that can be built, and the others with the reason."""
    built: list[Setting] = []
    unbuilt: list[tuple[Row, str]] = []
    for row in rows:
        try:
            built.append(setting_of(row))
        except InputError as error:
            unbuilt.append((row, str(error)))
    return built, unbuilt


def interval_of(errors: Array) -> Interval:
    """Return the interval that holds COVERAGE of published over modeled speedups, [rows]."""
    low, high = np.quantile(errors, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Interval(float(low), float(high))


def validate(rows: Sequence[Row], anchors: Sequence[Row] = ()) -> Validation:
    """Return the rows judged.

    A row's constants are fitted to the rows that come with the package, without its family where
    its device is among theirs; where it is not, the device itself is what they have not seen.
    With `anchors` each speedup is scaled by what the same network showed on other devices.
    """
    known_settings = settings_of(read_rows())[0]
    known = steps_of(known_settings)
    constants = fit(known)
    held, fits = held_out(known)
    ratios, families = known.speedups / held, np.array(known.families)
    built, unbuilt = settings_of(rows)
    steps = steps_of(built) if built else None
    given, textbook = (_speedups(steps, c) for c in (constants, TEXTBOOK))
    by_family = {family: _speedups(steps, c) for family, c in fits.items()}
    held_anchors = anchors_of(known_settings, held)
    near = interval_of(_anchored_ratios(known_settings, held_anchors, held))
    own = anchors_of(*_modeled(anchors, constants))
    judged = []
    for i, setting in enumerate(built):
        family = setting.network.family
        inside = family in fits and setting.device.name in known.devices
        speedup = float(by_family[family][i] if inside else given[i])
        factor = scale(setting, own)
        others = ratios[families != family] if inside else ratios
        judged.append(
            Judged(
                setting,
                speedup * (factor or 1.0),
                interval_of(others) if factor is None else near,
                "family" if inside or family not in fits else "device",
                factor is not None,
                _peak_ratio(setting),
                float(textbook[i]),
            )
        )
    return Validation(tuple(judged), tuple(unbuilt), constants, interval_of(ratios), near)


def _speedups(steps: Steps | None, constants: Constants) -> Array:
    return np.zeros(0) if steps is None else speedups(steps, constants)


def _modeled(rows: Sequence[Row], constants: Constants) -> tuple[list[Setting], Array]:
    built = settings_of(rows)[0]
    return built, _speedups(steps_of(built) if built else None, constants)


def _anchored_ratios(
    settings: Sequence[Setting], anchors: Sequence[Anchor], modeled: Array
) -> Array:
    """Return published over anchored speedups of rows that have rows of other devices, [rows]."""
    factors = [scale(setting, anchors) for setting in settings]
    pairs = zip(settings, modeled, factors, strict=True)
    return np.array([s.row.speedup / (value * f) for s, value, f in pairs if f is not None])


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
