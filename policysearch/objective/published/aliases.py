"""Other names of devices, networks and decoders: a table that users extend with a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policysearch.cost.device_file import is_device_file, read_device
from policysearch.cost.devices import Device, device_labelled, plain_name
from policysearch.files import read_text
from policysearch.objective.published.networks import spelled_alike
from policysearch.values import InputError, one_of, shown

SHIPPED = Path(__file__).with_name("aliases.toml")
"""Names that published rows use, besides the labels of the devices' own rows."""

TABLES = ("devices", "models")


@dataclass(frozen=True)
class Aliases:
    """What rows mean by the names of their `hardware` and `model`, by letters and digits.

    A device is a row's name or a device file; a model is a network or a decoder.
    """

    devices: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    def applied(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a row with its device and model under their own names."""
        given = {"hardware": self._device, "model": self._model}
        named = {k: find(row[k]) for k, find in given.items() if isinstance(row.get(k), str)}
        return {**row, **named}

    def _device(self, name: str) -> str:
        return self.devices.get(plain_name(name), name)

    def _model(self, name: str) -> str:
        """Return the model's own name; what stands in brackets behind it stays there."""
        if whole := self.models.get(spelled_alike(name)):
            return whole
        head, bracket, rest = name.partition(" (")
        return self.models.get(spelled_alike(head), head) + bracket + rest


NO_ALIASES = Aliases()


def read_aliases(path: Path | None = None) -> Aliases:
    """Return the names that come with the package, and before them those of a TOML file.

    Tables `devices` and `models` of the other name to the one that is meant. InputError names what
    is wrong in the file.
    """
    shipped = _read(SHIPPED)
    own = _read(path) if path else NO_ALIASES
    return Aliases({**shipped.devices, **own.devices}, {**shipped.models, **own.models})


def _read(path: Path) -> Aliases:
    try:
        data = tomllib.loads(read_text(path, "other names in TOML"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: {' '.join(str(error).split())}; expected TOML") from None
    for key, table in data.items():
        one_of(f"{path}: table", key, TABLES)
        if not isinstance(table, Mapping):
            raise InputError(f"{path}: {key}: {shown(table)}; expected a table of names")
        for name, meant in table.items():
            if not isinstance(meant, str):
                where = f"{path}: {key}: {shown(name)}"
                raise InputError(f"{where}: {shown(meant)}; expected the name that is meant")
    devices = {plain_name(name): meant for name, meant in data.get("devices", {}).items()}
    models = {spelled_alike(name): meant for name, meant in data.get("models", {}).items()}
    return Aliases(devices, models)


def device_of(label: str) -> Device:
    """Return the device that a row calls `label`: a device file, or a row by any of its labels."""
    return read_device(Path(label)) if is_device_file(label) else device_labelled(label)
