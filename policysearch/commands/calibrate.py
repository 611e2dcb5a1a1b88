"""`calibrate`: times kernels of a machine; torch is imported where that runs."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policysearch.commands.registry import Command
from policysearch.commands.shared import refuse, source
from policysearch.files import write_whole
from policysearch.formats import format_named
from policysearch.values import InputError, number, one_of

if TYPE_CHECKING:
    from policysearch.cost.devices import Device

CALIBRATE_ROUNDS = 7
CSV_MEMORY_GIB = 16.0
CSV_CACHE_BYTES = 2**20


def _arguments(calibrate: argparse.ArgumentParser) -> None:
    calibrate.add_argument("file", type=Path, metavar="DEVICE.toml", help="the file to write")
    calibrate.add_argument(
        "--rounds", type=int, metavar="N", help=f"of all kernels ({CALIBRATE_ROUNDS})"
    )
    calibrate.add_argument("--place", metavar="cpu|cuda", help="what runs the kernels (cpu)")
    calibrate.add_argument("--formats", nargs="+", metavar="FORMAT", help="by default those it has")
    calibrate.add_argument(
        "--csv", type=source, metavar="FILE", help="read timed kernels, time none"
    )
    calibrate.add_argument("--memory-gib", type=float, help=f"with --csv ({CSV_MEMORY_GIB:g})")
    calibrate.add_argument("--cache-bytes", type=int, help=f"with --csv ({CSV_CACHE_BYTES})")
    calibrate.add_argument("--host", metavar="adds|overlaps", help="with --csv (adds)")


def _calibrate(options: argparse.Namespace) -> None:
    from policysearch.cost.device_file import ENDING

    if options.file.suffix != ENDING:
        raise InputError(f"{options.file}: expected a name that ends in {ENDING}")
    if options.csv is not None:
        timed = "with --csv, which times none; expected one of them"
        refuse(options, ("rounds", "place", "formats"), timed)
        write_device(_from_csv(options), options.file)
        return
    refuse(options, ("memory_gib", "cache_bytes", "host"), "without --csv; expected both")
    rounds = CALIBRATE_ROUNDS if options.rounds is None else options.rounds
    number("--rounds", rounds, 1, 10**6)
    place = place_of(options.place or "cpu", "calibrate")
    from policysearch.verify.calibrate import FORMATS

    formats = tuple(options.formats or FORMATS[place.type])
    for name in formats:
        if not hasattr(_torch("calibrate"), format_named(name).name):
            raise InputError(f"--formats: {name}; expected formats of torch")
    if "float32" not in formats:
        raise InputError(f"--formats: {', '.join(formats)}; expected float32 among them")
    write_device(_calibration(options.file.stem, place, formats, rounds), options.file)


def _calibration(name: str, place: Any, formats: tuple[str, ...], rounds: int) -> Device:
    import numpy as np

    from policysearch.verify.calibrate import calibrate

    return calibrate(name, place, formats, rounds, np.random.default_rng(0), say_progress)


def _from_csv(options: argparse.Namespace) -> Device:
    from policysearch.cost.device_file import Machine, read_timings, timed_device

    memory = CSV_MEMORY_GIB if options.memory_gib is None else options.memory_gib
    number("--memory-gib", memory, 1e-6, 1e9)
    cache = CSV_CACHE_BYTES if options.cache_bytes is None else options.cache_bytes
    number("--cache-bytes", cache, 0, 1e15)
    host = one_of("--host", options.host or "adds", ("adds", "overlaps"))
    machine = Machine(
        arch="unknown",
        memory_gib=memory,
        multiprocessors=1,
        cache_bytes=cache,
        host="adds" if host == "adds" else "overlaps",
    )
    timings = read_timings(options.csv)
    return timed_device(options.file.stem, timings, machine, f"measured, {options.csv}")


def write_device(device: Device, path: Path) -> None:
    """Write a device file and say so."""
    from policysearch.cost.device_file import check_device, device_text

    check_device(device)
    write_whole({path: device_text(device).encode(errors="replace")})
    print(f'wrote {path}; name it in a study as `device = "{path}"`')


def place_of(kind: str, where: str) -> Any:
    """Return the torch.device of a kind; InputError where there is none."""
    one_of("--place", kind, ("cpu", "cuda"))
    torch = _torch(where)
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("--place: cuda, but torch finds no such device; expected cpu")
    return torch.device(kind)


def _torch(where: str) -> Any:
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"{where}: torch is not installed; expected policysearch[torch]")
    import torch

    return torch


def say_progress(line: str) -> None:
    """Write a line to standard error."""
    print(line, file=sys.stderr, flush=True)


COMMANDS = (
    Command(
        420,
        "calibrate",
        "time kernels on this machine; write a device that studies can name",
        _calibrate,
        _arguments,
        example="calibrate mine.toml",
    ),
)
