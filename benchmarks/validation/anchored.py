"""Modeled speedups of rows by constants that never saw them, and what anchors change in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.validation.anchors import Parts, carried, likeliest
from benchmarks.validation.fit import TEXTBOOK, Steps, fit, held_out, ratio, speedups, steps_of
from benchmarks.validation.intervals import Interval, interval_of
from benchmarks.validation.published import Setting
from policysearch.cost.devices import Device
from policysearch.cost.roofline import Array, Constants

NONE = ""
"""The family that is left out where none is."""


@dataclass(frozen=True)
class Known:
    """The rows that come with the package, and the constants fitted to them.

    `constants` are fitted to all of them, `fits` to all but one family, by its name, and
    `device_fits` to all but one device. `seconds` and `device_seconds` are those of their steps by
    the constants that did not see their family, or their device, [rows, 2]; `textbook` are their
    speedups by TEXTBOOK constants, [rows].
    """

    settings: tuple[Setting, ...]
    steps: Steps
    constants: Constants
    fits: Mapping[str, Constants]
    device_fits: Mapping[str, Constants]
    seconds: Array
    device_seconds: Array
    textbook: Array

    @property
    def families(self) -> NDArray[np.str_]:
        return np.array(self.steps.families)

    @property
    def ratios(self) -> Array:
        """Published over modeled speedups, their family held out, [rows]."""
        return self.steps.speedups / ratio(self.steps, self.seconds)

    @property
    def device_ratios(self) -> Array:
        """Published over modeled speedups, their device held out, [rows]."""
        return self.steps.speedups / ratio(self.steps, self.device_seconds)

    def left_out(self, setting: Setting) -> str:
        """Return the family without which a row is judged, NONE where its device is unseen."""
        family = setting.network.family
        return family if family in self.fits and setting.device.name in self.steps.devices else NONE

    def modeled(self, steps: Steps, left_out: Iterable[str]) -> dict[str, Array]:
        """Return modeled speedups of rows, [rows], by the constants without each family."""
        fits = {name: self.fits.get(name, self.constants) for name in left_out}
        return {name: speedups(steps, constants) for name, constants in fits.items()}

    def judged(self, settings: Sequence[Setting], left_out: Sequence[str]) -> tuple[Array, Array]:
        """Return speedups of rows, [rows], each by the constants without a family; textbook ones.

        Those of the package's rows are kept; the graphs of the others are priced.
        """
        places = {setting.row: place for place, setting in enumerate(self.settings)}
        kept = [places.get(setting.row) for setting in settings]
        new = [i for i, place in enumerate(kept) if place is None]
        found = np.ones((2, len(settings)))
        own = [i for i, place in enumerate(kept) if place is not None]
        rows = [place for place in kept if place is not None]
        found[:, own] = (self.steps.speedups / self.ratios)[rows], self.textbook[rows]
        if new:
            steps = steps_of([settings[i] for i in new])
            modeled = self.modeled(steps, {left_out[i] for i in new})
            found[0, new] = [modeled[left_out[i]][place] for place, i in enumerate(new)]
            found[1, new] = speedups(steps, TEXTBOOK)
        return found[0], found[1]

    def errors(self, without: str, measured: bool | None = None) -> Array:
        """Return published over held-out speedups of the rows of other families and devices.

        With `measured`, of the devices that have numbers of what they achieve, or of the others.
        """
        parts = []
        for groups, ratios in (
            (self.steps.families, self.ratios),
            (self.steps.devices, self.device_ratios),
        ):
            kept = np.array([group != without for group in groups])
            if measured is not None:
                kept &= np.array([bool(s.device.achieved) == measured for s in self.settings])
            parts.append(ratios[kept])
        return np.concatenate(parts)

    def interval(self, without: str, device: Device) -> Interval:
        """Return the interval of a device's rows, from those of other families and devices."""
        return interval_of(self.errors(without, bool(device.achieved)))


def known_of(settings: Sequence[Setting]) -> Known:
    """Return the rows with constants fitted to all of them, and to all but each family, device."""
    return fitted_known(settings, steps_of(settings))


def fitted_known(settings: Sequence[Setting], steps: Steps) -> Known:
    """Return the same of rows whose steps are made; held-out fits begin at that of all rows."""
    whole = fit(steps)
    seconds, fits = held_out(steps, steps.families, whole)
    device_seconds, device_fits = held_out(steps, steps.devices, whole)
    return Known(
        tuple(settings),
        steps,
        whole,
        fits,
        device_fits,
        seconds,
        device_seconds,
        speedups(steps, TEXTBOOK),
    )


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
                intervals[i] = interval_of(np.exp(scores * spread))
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
