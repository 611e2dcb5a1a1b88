"""The constants of the cost model, fitted to published rows, and how far held-out rows lie off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.validation.layers.as_run import as_run
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.published import Setting
from policysearch.cost.roofline import FITTED, Array, Constants, Load, Work, kernel_seconds, load_of


def joined(loads: Sequence[Load]) -> Load:
    """Return the works of several loads one after the other."""
    return Load(*(np.concatenate([getattr(load, f.name) for load in loads]) for f in fields(Load)))


FITTED_NAMES = tuple(f.name for f in fields(Constants) if f.name != "minimum_kernel_seconds")

START = (0.5, 0.08, 1.2, 0.85, 0.85, 20.0, 1.8, 2.5)
"""Where a fit begins, and what it is drawn to where rows say nothing; in the order of the names."""

SPREAD = (0.4, 0.06, 0.4, 0.1, 0.1, 1.0, 0.4, 0.7)
"""How far from there, in one unit of the prior: relative, but of the exponent absolute."""

LOWEST = (0.2, 0.0, 0.5, 0.5, 0.5, 2.0, 1.0, 0.3)
HIGHEST = (0.95, 0.3, 2.0, 0.97, 1.0, 100.0, 2.6, 8.0)

TOLERANCE = 0.1
"""Relative error from which a row weighs less: published rows have outliers."""

TIMES_WEIGHT = 0.3
"""Weight of a row's two step times against its speedup: they keep constants physical."""

PRIOR_WEIGHT = 0.3


@dataclass(frozen=True)
class Steps:
    """Two steps of each row as one load, baseline and mixed in turn.

    `ends` closes each step's works; `batches` and `seconds` are [rows, 2], the published seconds
    nan where throughputs are not in samples; `host` whether the device is its own host.
    """

    load: Load
    ends: NDArray[np.intp]
    batches: Array
    seconds: Array
    speedups: Array
    families: tuple[str, ...]
    host: NDArray[np.bool_]
    devices: tuple[str, ...]


def steps_of(settings: Sequence[Setting]) -> Steps:
    """Return both steps of every row, built from its network's layers."""
    loads = []
    for s in settings:
        stacks = (s.stacks.baseline, s.stacks.mixed)
        for stack, precision, batch in zip(stacks, s.precisions, s.row.batches, strict=True):
            step = Layers(stack, precision)
            s.network.build(step, batch, s.length)
            loads.append(load_of(as_run(_alike_once(step.works), s.device), s.device, stack))
    batches = np.array([s.row.batches for s in settings], np.float64)
    return Steps(
        joined(loads),
        np.cumsum([len(load.count) for load in loads]),
        batches,
        batches / np.array([s.row.throughputs for s in settings]),
        np.array([s.row.speedup for s in settings]),
        tuple(s.network.family for s in settings),
        np.array([s.device.is_its_host for s in settings]),
        tuple(s.device.name for s in settings),
    )


def _alike_once(works: Sequence[Work]) -> list[Work]:
    """Return works that differ, each with the count of all that are like it."""
    counts: dict[Work, float] = {}
    for work in works:
        alike = replace(work, count=1.0)
        counts[alike] = counts.get(alike, 0.0) + work.count
    return [replace(work, count=count) for work, count in counts.items()]


def step_seconds(steps: Steps, constants: Constants) -> Array:
    """Return the modeled seconds of both steps of every row, [rows, 2]."""
    load = steps.load
    each = kernel_seconds(load, constants)
    starts = np.concatenate([[0], steps.ends[:-1]])
    kernels = np.add.reduceat((each.kernel + each.shift) * load.count, starts)
    launches = np.add.reduceat(load.launch_seconds * load.count, starts) * constants.launch_factor
    host = np.repeat(steps.host, 2)
    return np.where(host, kernels + launches, np.maximum(kernels, launches)).reshape(-1, 2)


def speedups(steps: Steps, constants: Constants) -> Array:
    """Return the modeled throughput of the mixed run over the baseline's, [rows]."""
    return _ratio(steps, step_seconds(steps, constants))


def _ratio(steps: Steps, seconds: Array) -> Array:
    return seconds[:, 0] / seconds[:, 1] * steps.batches[:, 1] / steps.batches[:, 0]


def chosen(steps: Steps, rows: NDArray[np.bool_]) -> Steps:
    """Return the steps of the rows that are chosen."""
    starts = np.concatenate([[0], steps.ends[:-1]])
    kept = np.repeat(rows, 2)
    works = np.repeat(kept, steps.ends - starts)
    load = Load(*(getattr(steps.load, f.name)[works] for f in fields(Load)))
    picked = np.flatnonzero(rows)
    return Steps(
        load,
        np.cumsum((steps.ends - starts)[kept]),
        steps.batches[rows],
        steps.seconds[rows],
        steps.speedups[rows],
        tuple(steps.families[i] for i in picked),
        steps.host[rows],
        tuple(steps.devices[i] for i in picked),
    )


def constants_at(place: Array) -> Constants:
    """Return the constants at a place [8] of the prior: 0 is START, 1 one SPREAD from it."""
    start, spread = np.array(START), np.array(SPREAD)
    additive = np.array([name == "share_exponent" for name in FITTED_NAMES])
    values = np.where(additive, start + spread * place, start * np.exp(spread * place))
    values = np.clip(values, LOWEST, HIGHEST)
    return replace(FITTED, **dict(zip(FITTED_NAMES, map(float, values), strict=True)))


def fit(steps: Steps) -> Constants:
    """Return the constants that fit the rows best: least soft absolute error of the logarithms.

    Every family weighs as the root of its rows. Step times off by more than a factor of 3 at the
    start are in other units than samples and are left out.
    """
    counts = {family: steps.families.count(family) for family in steps.families}
    weights = np.array([counts[family] ** -0.5 for family in steps.families])
    weights *= len(weights) / weights.sum()
    first = step_seconds(steps, constants_at(np.zeros(len(START)))) / steps.seconds
    timed = np.isfinite(first) & (first > 1 / 3) & (first < 3)

    def residuals(place: Array) -> Array:
        seconds = step_seconds(steps, constants_at(place))
        of_speed = np.log(_ratio(steps, seconds) / steps.speedups) / TOLERANCE
        with np.errstate(divide="ignore", invalid="ignore"):
            of_times = np.log(np.where(timed, seconds / steps.seconds, 1.0)) / TOLERANCE
        parts = (
            of_speed * weights**0.5,
            (of_times * TIMES_WEIGHT * weights[:, None] ** 0.5).ravel(),
            PRIOR_WEIGHT * len(weights) ** 0.5 * place,
        )
        return np.concatenate(parts)

    found = least_squares(residuals, np.zeros(len(START)), loss="soft_l1", diff_step=1e-3)
    return constants_at(found.x)


def held_out(steps: Steps) -> tuple[Array, dict[str, Constants]]:
    """Return speedups [rows], each with constants fitted without the row's family, and those."""
    result, fits = np.zeros(len(steps.speedups)), {}
    for family in dict.fromkeys(steps.families):
        inside = np.array([f == family for f in steps.families])
        fits[family] = fit(chosen(steps, ~inside))
        result[inside] = speedups(chosen(steps, inside), fits[family])
    return result, fits
