"""The constants of the cost model, fitted to published rows, and how far held-out rows lie off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.validation.layers.as_run import as_run
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.layers.precision import Precision
from benchmarks.validation.published import Setting
from benchmarks.validation.recorded import Run, recorded_works
from policysearch.cost.devices import Device
from policysearch.cost.roofline import Array, Constants, Load, Work, kernel_seconds, load_of
from policysearch.cost.stacks import Stack


def joined(loads: Sequence[Load]) -> Load:
    """Return the works of several loads one after the other."""
    return Load(*(np.concatenate([getattr(load, f.name) for load in loads]) for f in fields(Load)))


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

TEXTBOOK = Constants(
    product_share=1.0,
    convolution_share=1.0,
    tfloat32_share=1.0,
    older_share=1.0,
    pipeline_depth=64.0,
    plain_share=0.8,
    plain_convolution_share=0.8,
    winograd_gain=1.0,
    bandwidth_share=0.85,
    elementwise=1e-9,
    norm=1e-9,
    reduction=1e-9,
    movement=1e-9,
    update=1e-9,
    kernel_seconds=0.0,
    launch_factor=0.0,
)
"""A roofline as textbooks have it: what products achieve, four fifths of other peaks, no more."""

FITTED_NAMES = tuple(f.name for f in fields(Constants))

TOLERANCE = 0.1
"""Relative error from which a row weighs less: published rows have outliers."""

TIMES_WEIGHT = 0.4
"""Weight of the error of a step time against that of a speedup: rates and elementwise costs make up
for each other in speedups, and not in times."""

CLOSE = 1e-4
"""Relative change of the loss, or of the constants, at which a fit ends."""


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


def steps_of(settings: Sequence[Setting], listed: bool = False) -> Steps:
    """Return both steps of every row, from its network's record where it has one.

    With `listed`, from its layer list.
    """
    loads = []
    for s in settings:
        stacks = (s.stacks.baseline, s.stacks.mixed)
        for stack, precision, batch in zip(stacks, s.precisions, s.row.batches, strict=True):
            works = _works_of(s, batch, precision, stack, listed)
            loads.append(load_of(_alike_once(works, s.device), s.device, stack))
    ends = np.cumsum([len(load.count) for load in loads])
    return replace(measured_of(settings), load=joined(loads), ends=ends)


def measured_of(settings: Sequence[Setting]) -> Steps:
    """Return what was published of rows, their steps without works."""
    batches = np.array([s.row.batches for s in settings], np.float64)
    return Steps(
        Load(*(np.zeros(0) for _ in fields(Load))),
        np.zeros(2 * len(settings), np.intp),
        batches,
        batches / np.array([s.row.throughputs for s in settings]),
        np.array([s.row.speedup for s in settings]),
        tuple(s.network.family for s in settings),
        np.array([s.device.is_its_host for s in settings]),
        tuple(s.device.name for s in settings),
    )


def is_recorded(s: Setting) -> bool:
    """Whether a row's network is recorded at its length."""
    return _run(s, s.row.batches[0], s.precisions[0], s.stacks.baseline).is_recorded


def _run(s: Setting, batch: int, precision: Precision, stack: Stack) -> Run:
    return Run(s.network.name, s.length, batch, precision, s.device, stack)


def _works_of(
    s: Setting, batch: int, precision: Precision, stack: Stack, listed: bool
) -> Sequence[Work]:
    """Return the works of a step by the record of its network, by its layers where it has none."""
    run = _run(s, batch, precision, stack)
    if run.is_recorded and not listed:
        return recorded_works(run)
    step = Layers(stack, precision)
    s.network.build(step, batch, s.length)
    return as_run(step.works, s.device)


def _alike_once(works: Iterable[Work], device: Device) -> list[Work]:
    """Return works with passes of one kind and one ratio of bytes to elements added up.

    Their seconds are those of their sum. A pass that stays in the cache asks for no bytes.
    """
    sums: dict[tuple[str, float], Work] = {}
    rest = []
    for work in works:
        if work.product is not None:
            rest.append(work)
            continue
        bytes = 0.0 if work.fresh and work.bytes <= device.cached_bytes else work.bytes
        key = (work.kind, round(bytes / work.elements, 9) if work.elements else -1.0)
        sum = sums.get(key, Work(0.0, 0.0, launches=0.0, kind=work.kind))
        sums[key] = replace(
            sum,
            bytes=sum.bytes + bytes * work.count,
            elements=sum.elements + work.elements * work.count,
            launches=sum.launches + work.launches * work.count,
            host_seconds=sum.host_seconds + work.host_seconds * work.count,
        )
    return [*rest, *sums.values()]


def step_seconds(steps: Steps, constants: Constants) -> Array:
    """Return the modeled seconds of both steps of every row, [rows, 2]."""
    load = steps.load
    each = kernel_seconds(load, constants)
    starts = np.concatenate([[0], steps.ends[:-1]])
    kernels = np.add.reduceat((each.kernel + each.shift) * load.count, starts)
    launches = np.add.reduceat(load.launch_seconds * load.count, starts) * constants.launch_factor
    host = np.repeat(steps.host, 2)
    seconds = np.where(host, kernels + launches, np.maximum(kernels, launches))
    return seconds.reshape(-1, 2) + constants.step_seconds


def speedups(steps: Steps, constants: Constants) -> Array:
    """Return the modeled throughput of the mixed run over the baseline's, [rows]."""
    return ratio(steps, step_seconds(steps, constants))


def ratio(steps: Steps, seconds: Array) -> Array:
    """Return the speedups that seconds of both steps are, [rows]."""
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

    `groups` names the group of each row: its family, or its device. Every fit begins at `start`.
    """
    result, fits = np.zeros((len(groups), 2)), {}
    for group in dict.fromkeys(groups):
        inside = np.array([other == group for other in groups])
        fits[group] = fit(chosen(steps, ~inside), start)
        result[inside] = step_seconds(chosen(steps, inside), fits[group])
    return result, fits
