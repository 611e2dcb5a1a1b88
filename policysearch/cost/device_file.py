"""A user's own device: a TOML file with the fields of `Device`, and how timed kernels make one."""

from __future__ import annotations

import csv
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from policysearch.cost.devices import DEVICES, Device, Sourced, device_named, peak_key
from policysearch.cost.timings import Timing, Timings, is_product
from policysearch.files import read_text
from policysearch.formats import format_named
from policysearch.values import InputError, from_plain, names_once, number, one_of, shown, to_plain

ENDING = ".toml"
"""A device that is called so is a file, looked for from the folder that the program runs in."""


LEAST_RATE = 1e6
"""Least bytes or FLOP per second of a device: fewer are GB/s or TFLOP/s."""


def is_device_file(name: object) -> bool:
    return isinstance(name, str) and name.endswith(ENDING)


def device_at(name: str) -> Device:
    """Return the device of the file or row `name`; InputError where there is none."""
    return read_device(Path(name)) if is_device_file(name) else device_named(name)


def read_device(path: Path) -> Device:
    """Return the device of a file, called after the file; InputError names what is wrong in it."""
    try:
        data = tomllib.loads(read_text(path, "a device in TOML"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: {' '.join(str(error).split())}; expected TOML") from None
    device = from_plain(Device, data, str(path))
    try:
        check_device(device)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return replace(device, name=str(path))


def check_device(device: Device) -> None:
    """Raise InputError for a device that cannot be, or whose numbers are not in the units asked."""
    for gib in device.memory_gib:
        number("memory_gib", gib, 1e-6, 1e9)
    if not device.memory_gib:
        raise InputError("memory_gib: []; expected one size or more")
    rows = DEVICES.values()
    units = {name for row in rows for name, _ in row.peaks}
    _check_rates("peaks", device.peaks, units)
    _check_rates("achieved", device.achieved, units)
    others = {name for row in rows for name, _ in row.other}
    names_once("other", [name for name, _ in device.other])
    for name, row in device.other:
        number(f"other {one_of('other', name, others)}", row.value, 1e-6, 1e24)
    names_once("alignment", [name for name, _ in device.alignment])
    for name, elements in device.alignment:
        _check_key("alignment", name, units)
        number(f"alignment {name}", elements, 1, 2**20)
    if "float32" not in dict(device.peaks):
        names = ", ".join(dict(device.peaks)) or "none"
        raise InputError(f"peaks: {names}; expected float32 among them")
    number("bandwidth, bytes per second", device.bandwidth.value, LEAST_RATE, 1e18)
    number("multiprocessors", device.multiprocessors.value, 1, 1e6)
    number("cache_bytes", device.cache_bytes, 0, 1e15)
    number("host_seconds", device.host_seconds, 0.0, 1.0)
    number("host_step_seconds", device.host_step_seconds, 0.0, 1e3)
    device.timings.check()
    if device.accuracy is not None:
        for name in ("mean_error", "p90_error", "retest_error"):
            number(f"accuracy {name}", getattr(device.accuracy, name), 0.0, 1e6)


def _check_rates(key: str, rates: tuple[tuple[str, Sourced], ...], units: set[str]) -> None:
    names_once(key, [name for name, _ in rates])
    for name, rate in rates:
        _check_key(key, name, units)
        number(f"{key} {name}, FLOP per second", rate.value, LEAST_RATE, 1e24)


def _check_key(key: str, name: str, units: set[str]) -> None:
    """Raise InputError unless a format is named as in the rows that come with the package."""
    if name in units:
        return
    if peak_key(name) != name:
        raise InputError(f"{key}: {name!r}; expected {peak_key(name)!r}")
    try:
        format_named(name)
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def device_text(device: Device) -> str:
    """Return the file of a device."""
    plain = to_plain(device)
    rows = plain.pop("timings")["rows"]
    lines = [f"{key} = {_value(value)}" for key, value in plain.items() if value is not None]
    kernels = ["timings.rows = [", *(f"  {_value(row)}," for row in rows), "]"] if rows else []
    return "\n".join([*lines, *kernels, ""])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    # strings as JSON writes them are TOML, but for the one character that JSON leaves as it is; its
    # escapes of two halves of a character are not
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


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
