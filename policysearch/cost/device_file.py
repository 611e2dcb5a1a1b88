"""A user's own device: one TOML file with the fields of `Device`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from policysearch.cost.devices import DEVICES, Device, device_named
from policysearch.files import read_text
from policysearch.formats import format_named
from policysearch.values import InputError, from_plain, number, to_plain

ENDING = ".toml"
"""A device that is called so is a file, looked for from the folder that the program runs in."""


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
        _check(device)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return replace(device, name=str(path))


def _check(device: Device) -> None:
    for gib in device.memory_gib:
        number("memory_gib", gib, 1e-6, 1e9)
    if not device.memory_gib:
        raise InputError("memory_gib: []; expected one size or more")
    known = dict(device.peaks)
    units = {name for row in DEVICES.values() for name, _ in row.peaks}
    for name, peak in device.peaks:
        if name not in units:
            format_named(name)
        number(f"peaks {name}", peak.value, 1.0, 1e24)
    if "float32" not in known:
        raise InputError(f"peaks: {', '.join(known) or 'none'}; expected float32 among them")
    number("bandwidth", device.bandwidth.value, 1.0, 1e18)
    number("multiprocessors", device.multiprocessors.value, 1, 1e6)
    number("cache_bytes", device.cache_bytes, 0, 1e15)
    number("host_seconds", device.host_seconds, 0.0, 1.0)
    number("host_step_seconds", device.host_step_seconds, 0.0, 1e3)


def device_text(device: Device) -> str:
    """Return the file of a device."""
    plain = to_plain(device)
    rows = plain.pop("timings")["rows"]
    lines = [f"{key} = {_value(given)}" for key, given in plain.items() if given is not None]
    kernels = ["timings.rows = [", *(f"  {_value(row)}," for row in rows), "]"] if rows else []
    return "\n".join([*lines, *kernels, ""])


def _value(given: Any) -> str:
    if isinstance(given, Mapping):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in given.items()) + "}"
    if isinstance(given, list):
        return "[" + ", ".join(map(_value, given)) + "]"
    # strings as JSON writes them are TOML, but for the one character that JSON leaves as it is
    text = json.dumps(given)
    return text.replace("\x7f", "\\u007F")
