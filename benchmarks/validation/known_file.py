"""What was fitted to the package's rows, as a file: a fit takes minutes, reading it none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.validation.anchored import Known
from benchmarks.validation.fit import is_recorded, measured_of
from benchmarks.validation.published import Setting, setting_of, shipped_rows
from benchmarks.validation.row_file import built_of
from policysearch.cost.roofline import Array, Constants

PATH = Path(__file__).with_name("held_out.json")
"""Written by `python -m benchmarks.validation --fit`."""

DIGITS = 6


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


def package_settings() -> list[Setting]:
    """Return the settings of the package's rows whose networks are recorded as graphs."""
    settings, _ = built_of(shipped_rows(), setting_of)
    return [s for s in settings if is_recorded(s)]


def read_known(path: Path = PATH) -> Known:
    """Return what was fitted to the package's rows.

    ValueError where the file is of other rows than the package has; `--fit` renews it.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    settings = package_settings()
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
