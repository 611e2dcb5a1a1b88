"""The rows that come with the package with what was fitted to them, as a file of held-out seconds.

A fit takes minutes, reading what it found none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.devices import Device
from policysearch.cost.roofline import Array, Constants
from policysearch.objective.published.row_file import built_of
from policysearch.objective.published.rows import Setting, setting_of, shipped_rows
from policysearch.objective.published.steps import (
    TEXTBOOK,
    Steps,
    measured_of,
    ratio,
    speedups,
    steps_of,
)

COVERAGE = 0.8
"""Share of rows that an interval is meant to hold."""


class Interval(NamedTuple):
    """Factors on a modeled number between which the published one lies in COVERAGE of rows."""

    low: float
    high: float


class Errors(NamedTuple):
    """Published over modeled numbers, [rows], and what each of them weighs; None: all alike."""

    ratios: Array
    weights: Array | None = None


def interval_of(errors: Errors) -> Interval:
    """Return the interval that holds COVERAGE of the weight of errors."""
    ends = [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]
    how: dict[str, Any] = {}
    if errors.weights is not None:
        how = {"weights": errors.weights, "method": "inverted_cdf"}  # numpy has no other of these
    low, high = np.quantile(errors.ratios, ends, **how)
    return Interval(float(low), float(high))


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

    def errors(self, without: str, measured: bool) -> Errors:
        """Return published over held-out speedups of the rows of other families and devices.

        They are of the devices that have numbers of what they achieve, where these are `measured`,
        or of the others. A net that is priced next is a new family, not one more row of a known
        one: all families weigh the same, and all devices, however many rows they have.
        """
        like = np.array([bool(s.device.achieved) == measured for s in self.settings])
        parts = []
        for names, ratios in (
            (self.steps.families, self.ratios),
            (self.steps.devices, self.device_ratios),
        ):
            kept = like & (np.array(names) != without)
            groups, rows = np.unique(np.array(names)[kept], return_inverse=True)
            weights = 1.0 / (np.bincount(rows)[rows] * len(groups))
            parts.append(Errors(ratios[kept], weights))
        return Errors(*map(np.concatenate, zip(*parts, strict=True)))

    def interval(self, without: str, device: Device) -> Interval:
        """Return the interval of a device's rows, from those of other families and devices."""
        return interval_of(self.errors(without, bool(device.achieved)))


PATH = Path(__file__).with_name("held_out.json")
"""Written by `python -m benchmarks.validation --fit`."""


def read_known(path: Path = PATH) -> Known:
    """Return what was fitted to the package's rows.

    ValueError where the file is of other rows than the package has; `--fit` renews it.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    settings, _ = built_of(shipped_rows(), setting_of)
    if [setting.row.id for setting in settings] != data["rows"]:
        raise ValueError(f"{path.name} is of other rows; renew it with --fit")
    return Known(
        tuple(settings),
        measured_of(settings),
        Constants(**data["constants"]),
        _constants(data["families"]),
        _constants(data["devices"]),
        np.array(data["seconds"]),
        np.array(data["device_seconds"]),
        np.array(data["textbook"])[:, 0],
    )


def _constants(rows: Mapping[str, Any]) -> dict[str, Constants]:
    return {name: Constants(**row) for name, row in rows.items()}
