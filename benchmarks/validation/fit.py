"""The constants of the cost model, fitted to published rows, and how far held-out rows lie off."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from policysearch.cost.roofline import Array, Constants
from policysearch.objective.published.known import PATH, Known
from policysearch.objective.published.rows import Setting
from policysearch.objective.published.steps import (
    FITTED_NAMES,
    TEXTBOOK,
    Steps,
    chosen,
    ratio,
    speedups,
    step_seconds,
    steps_of,
)

DIGITS = 6
"""Of what is written."""

PRIORS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "product_share": (0.85, 0.15),
        "convolution_share": (0.85, 0.15),
        "tfloat32_share": (1.0, 0.15),
        "older_share": (0.9, 0.15),
        "pipeline_depth": (64.0, 0.7),
        "plain_share": (0.85, 0.1),
        "plain_convolution_share": (0.7, 0.2),
        "winograd_gain": (1.8, 0.3),
        "bandwidth_share": (0.85, 0.05),
        "elementwise": (8.0, 0.7),
        "norm": (20.0, 0.7),
        "reduction": (20.0, 0.7),
        "movement": (15.0, 0.7),
        "update": (12.0, 0.7),
        "kernel_seconds": (3e-6, 0.35),
        "launch_factor": (2.0, 0.7),
        "step_seconds": (1e-3, 1.0),
    }
)
"""By constant, where a fit begins and what it is drawn to, and the standard deviation of its
logarithm: textbook values, and how far they may be off."""

HIGHEST: Mapping[str, float] = MappingProxyType(
    {
        "product_share": 1.0,
        "convolution_share": 1.0,
        "bandwidth_share": 0.95,
        "kernel_seconds": 5e-6,
    }
)
"""What no device exceeds, and a fit with free hands would."""

TOLERANCE = 0.1
"""Relative error from which a row weighs less: published rows have outliers."""

TIMES_WEIGHT = 0.4
"""Weight of the error of a step time against that of a speedup: rates and elementwise costs make up
for each other in speedups, and not in times."""

CLOSE = 1e-5
"""Relative change of the loss, or of the constants, at which a fit ends."""

STILL = 1e-9
"""Distance among PRIORS that is none but of rounding."""


def constants_at(place: Array) -> Constants:
    """Return the constants at a place of PRIORS: 0 is where it begins, 1 one deviation from it."""
    start, spread = np.array([PRIORS[name] for name in FITTED_NAMES]).T
    highest = np.array([HIGHEST.get(name, np.inf) for name in FITTED_NAMES])
    values = np.minimum(start * np.exp(spread * place), highest)
    return Constants(**dict(zip(FITTED_NAMES, map(float, values), strict=True)))


def place_of(constants: Constants) -> Array:
    """Return where constants lie among PRIORS, the inverse of `constants_at`."""
    start, spread = np.array([PRIORS[name] for name in FITTED_NAMES]).T
    values = np.array([getattr(constants, name) for name in FITTED_NAMES])
    return np.asarray(np.log(values / start) / spread)


def fit(steps: Steps, start: Constants | None = None) -> Constants:
    """Return the constants that fit speedups and step times together; the search is from `start`.

    Least soft absolute errors of the logarithms, every family weighing as the root of its rows.
    Step times off by more than a factor of 3 at the start are in other units than samples, such as
    tokens, and are left out.
    """
    counts = {family: steps.families.count(family) for family in steps.families}
    weights = np.array([counts[family] ** -0.5 for family in steps.families])
    weights *= len(weights) / weights.sum()
    first = step_seconds(steps, constants_at(np.zeros(len(PRIORS)))) / steps.seconds
    timed = np.isfinite(first) & (first > 1 / 3) & (first < 3)

    def residuals(place: Array) -> Array:
        seconds = step_seconds(steps, constants_at(place))
        of_speed = np.log(ratio(steps, seconds) / steps.speedups) / TOLERANCE
        with np.errstate(divide="ignore", invalid="ignore"):
            of_times = np.log(np.where(timed, seconds / steps.seconds, 1.0)) / TOLERANCE
        parts = (
            of_speed * weights**0.5,
            (of_times * TIMES_WEIGHT * weights[:, None] ** 0.5).ravel(),
            place,
        )
        return np.concatenate(parts)

    place = np.zeros(len(PRIORS)) if start is None else place_of(start)
    near = {"ftol": CLOSE, "xtol": CLOSE}
    found = least_squares(residuals, place, loss="soft_l1", diff_step=1e-3, **near)
    return constants_at(found.x)


def held_out(
    steps: Steps, groups: Sequence[str], start: Constants | None = None
) -> tuple[Array, dict[str, Constants]]:
    """Return the seconds of rows [rows, 2] by constants fitted without the row's group, and those.

    `groups` names the group of each row: its family, or its device. Every fit begins at `start`,
    and anew where it does not leave it.
    """
    result, fits = np.zeros((len(groups), 2)), {}
    for group in dict.fromkeys(groups):
        inside = np.array([other == group for other in groups])
        rest = chosen(steps, ~inside)
        fits[group] = fit(rest, start)
        # a search that ends where it began, held by one of HIGHEST, has seen the group
        if start and np.allclose(place_of(fits[group]), place_of(start), rtol=0.0, atol=STILL):
            fits[group] = fit(rest)
        result[inside] = step_seconds(chosen(steps, inside), fits[group])
    return result, fits


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


def write_known(known: Known, path: Path = PATH) -> None:
    """Write the constants and the held-out seconds of the package's rows."""
    data = {
        "constants": asdict(known.constants),
        "families": {name: asdict(c) for name, c in known.fits.items()},
        "devices": {name: asdict(c) for name, c in known.device_fits.items()},
        "rows": [setting.row.id for setting in known.settings],
        "seconds": _rounded(known.seconds),
        "device_seconds": _rounded(known.device_seconds),
        "textbook": _rounded(known.textbook[:, None]),
    }
    rows = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in data.items())
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def _rounded(seconds: Array) -> list[list[float]]:
    return [[float(f"{value:.{DIGITS}g}") for value in row] for row in seconds.tolist()]
