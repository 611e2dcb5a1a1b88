"""Both steps of published rows as works of their graphs, and their seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from policysearch.cost.devices import Device
from policysearch.cost.roofline import (
    Array,
    Constants,
    Load,
    Work,
    kernel_seconds,
    load_of,
    overlapped_seconds,
)
from policysearch.objective.published.graphs import recorded_works
from policysearch.objective.published.rows import Setting


def joined(loads: Sequence[Load]) -> Load:
    """Return the works of several loads one after the other."""
    return Load(*(np.concatenate([getattr(load, f.name) for load in loads]) for f in fields(Load)))


FITTED_NAMES = tuple(f.name for f in fields(Constants))

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


@dataclass(frozen=True)
class Steps:
    """Two steps of each row as one load, baseline and mixed in turn.

    `ends` closes each step's works; `batches` and `seconds` are [rows, 2], the published seconds
    nan where sequences were shorter than their length says; `host` whether the device is its own
    host.
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
    """Return both steps of every row; InputError where a network has no record of a length."""
    loads = [
        load_of(_alike_once(recorded_works(run), run.device), run.device, run.stack)
        for setting in settings
        for run in setting.runs
    ]
    ends = np.cumsum([len(load.count) for load in loads])
    return replace(measured_of(settings), load=joined(loads), ends=ends)


def measured_of(settings: Sequence[Setting]) -> Steps:
    """Return what was published of rows, their steps without works."""
    batches = np.array([s.row.batches for s in settings], np.float64)
    units = [s.length if s.network.in_tokens else 1 for s in settings]
    seconds = batches * np.array(units)[:, None] / np.array([s.row.throughputs for s in settings])
    seconds[[setting.binned for setting in settings]] = np.nan
    return Steps(
        Load(*(np.zeros(0) for _ in fields(Load))),
        np.zeros(2 * len(settings), np.intp),
        batches,
        seconds,
        np.array([s.row.speedup for s in settings]),
        tuple(s.network.family for s in settings),
        np.array([s.device.is_its_host for s in settings]),
        tuple(s.device.name for s in settings),
    )


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
    each_launches = load.launch_seconds * constants.launch_factor + load.host_seconds
    launches = np.add.reduceat(each_launches * load.count, starts)
    seconds = overlapped_seconds(kernels, launches, np.repeat(steps.host, 2))
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
