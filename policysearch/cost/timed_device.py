"""A device row from timed kernels."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from policysearch.cost.devices import Device, Sourced, peak_key
from policysearch.cost.timings import Timing, Timings, is_product
from policysearch.files import read_text
from policysearch.values import InputError, shown

COLUMNS = tuple(field.name for field in fields(Timing))
"""Of a CSV file of kernels; extents are joined by "x", as in 1x128x64x256."""


@dataclass(frozen=True)
class Machine:
    """What timings do not tell of the machine they are from; see `Device`."""

    arch: str
    memory_gib: float
    multiprocessors: int
    cache_bytes: int
    host: Literal["adds", "overlaps"]


def timed_device(name: str, timings: Timings, machine: Machine, source: str) -> Device:
    """Return the device whose peaks and bandwidth are the best that `timings` have seen.

    InputError where there is no float32 product or no float32 addition among them.
    """
    peaks: dict[str, float] = {}
    bandwidth = 0.0
    for row in timings.rows:
        if is_product(row.op):
            rate = 2 * math.prod(row.extents) / row.cached_seconds
            format = peak_key(row.format.partition(">")[0])
            peaks[format] = max(peaks.get(format, 0.0), rate)
        elif (row.op, row.format) == ("add", "float32"):
            bandwidth = max(bandwidth, 12 * math.prod(row.extents) / row.seconds)
    if "float32" not in peaks or not bandwidth:
        raise InputError("timings: expected a matmul and an add in float32 among them")
    return Device(
        name=name,
        arch=machine.arch,
        memory_gib=(machine.memory_gib,),
        peaks=tuple((key, Sourced(value, source)) for key, value in sorted(peaks.items())),
        bandwidth=Sourced(bandwidth, source),
        multiprocessors=Sourced(machine.multiprocessors, source),
        alignment=(),
        timings=timings,
        cache_bytes=machine.cache_bytes,
        host=machine.host,
    )


def read_timings(path: Path) -> Timings:
    """Return the kernels of a CSV file with the columns COLUMNS; InputError names the line."""
    lines = csv.reader(read_text(path, "a CSV file of kernels").splitlines())
    head = tuple(next(lines, ()))
    if head != COLUMNS:
        raise InputError(f"{path}: columns {', '.join(head)}; expected {', '.join(COLUMNS)}")
    return Timings(tuple(_timing(row, f"{path}: line {n}") for n, row in enumerate(lines, 2)))


def _timing(row: list[str], where: str) -> Timing:
    try:
        op, format, extents, seconds, cached = row
        sides = tuple(int(extent) for extent in extents.split("x"))
        return Timing(op, format, sides, float(seconds), float(cached))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except ValueError:
        valid = "op,format,1x2x3,seconds,cached_seconds"
        raise InputError(f"{where}: {shown(','.join(row))}; expected {valid}") from None
