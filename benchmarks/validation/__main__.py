"""Modeled memory, narrow formats and several devices beside what is published or measured here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from benchmarks.validation.fit import known_of, write_known
from benchmarks.validation.narrow.fit import write_narrow
from benchmarks.validation.narrow.rows import narrow_row_of, read_narrow_rows
from benchmarks.validation.narrow.scalings import HELD_OUT as NARROW_HELD_OUT
from benchmarks.validation.pages.memory_page import memory_validation_page
from benchmarks.validation.pages.narrow_page import judged_rows, narrow_page
from benchmarks.validation.pages.ranks_page import ranks_page
from benchmarks.validation.published_memory import SHIPPED as MEMORY_ROWS
from benchmarks.validation.published_memory import (
    SHIPPED_MEASURED,
    memory_row_of,
    read_memory_rows,
)
from benchmarks.validation.ranks import ranks_of
from benchmarks.validation.validate_memory import validate_memory
from policysearch.cli import Parser, main
from policysearch.commands.calibrate import CALIBRATE_ROUNDS, place_of, say_progress, write_device
from policysearch.commands.shared import refuse
from policysearch.commands.validate import need, refusals
from policysearch.cost.device_file import read_device
from policysearch.objective.published.aliases import read_aliases
from policysearch.objective.published.judged import settings_of
from policysearch.objective.published.known import PATH as HELD_OUT
from policysearch.objective.published.row_file import Fields, Read, read_file
from policysearch.objective.published.rows import shipped_rows
from policysearch.values import InputError, number

T = TypeVar("T")

MEASURED_ROUNDS = 20


def parser() -> Parser:
    """Return the parser of the command line."""
    command = Parser(
        prog="python -m benchmarks.validation",
        description="Compares what is modeled with what is published, and with this machine.",
    )
    command.add_argument("--rows", type=Path, metavar="FILE", help="JSON rows (the package's)")
    command.add_argument(
        "--aliases", type=Path, metavar="FILE", help="TOML: other names of devices and models"
    )
    kinds = command.add_mutually_exclusive_group(required=True)
    kinds.add_argument(
        "--narrow", action="store_true", help="rows of 8-bit and smaller formats over bfloat16"
    )
    kinds.add_argument(
        "--memory", action="store_true", help="memory of mixed over float32 training"
    )
    kinds.add_argument(
        "--ranks", action="store_true", help="speedups on several devices over those on one"
    )
    kinds.add_argument(
        "--fit", action="store_true", help="fit the constants again, in minutes, and write them"
    )
    kinds.add_argument("--measured", action="store_true", help="train policies in torch here")
    _add_measured(command)
    command.set_defaults(run=_validate)
    return command


def validation(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return main(arguments, parser())


def _validate(options: argparse.Namespace) -> None:
    if options.measured:
        refuse(
            options,
            ("rows", "aliases"),
            "with --measured, which trains here; expected one of them",
        )
        _measured(options)
        return
    refuse(options, ("device", "place", "rounds", "seed"), "without --measured; expected both")
    if options.fit:
        refuse(options, ("rows", "aliases"), "with --fit; expected one of them")
        write_known(known_of(settings_of(shipped_rows())[0]))
        write_narrow(read_narrow_rows())
        print(f"wrote {HELD_OUT.name} and {NARROW_HELD_OUT.name}")
        return
    kind = next(kind for kind in PAGES if getattr(options, kind))
    page, refused = PAGES[kind](options)
    print("\n".join([page, *refusals(refused)]))


def _read(
    options: argparse.Namespace,
    path: Path,
    build: Callable[[Fields], T | None],
) -> Read[T]:
    return read_file(path, "", build, read_aliases(options.aliases))


def _memory(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    read = _read(options, options.rows or MEMORY_ROWS, memory_row_of)
    more = read_memory_rows(SHIPPED_MEASURED) if options.rows is None else ()
    memory = validate_memory((*read.rows, *more))
    need(memory.judged, [*read.refused, *(reason for _, reason in memory.unbuilt)], options.rows)
    return memory_validation_page(memory), read.refused


def _ranks(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    ranks, left, refused = ranks_of(options.rows, read_aliases(options.aliases))
    need(ranks, [*refused, *left], options.rows)
    return ranks_page(ranks, left), refused


def _narrow(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    given = Read(read_narrow_rows(), ())
    read = _read(options, options.rows, narrow_row_of) if options.rows else given
    judged, unbuilt = judged_rows(read.rows)
    need(judged, [*read.refused, *(reason for _, reason in unbuilt)], options.rows)
    return narrow_page(judged, unbuilt), read.refused


PAGES: Mapping[str, Callable[[argparse.Namespace], tuple[str, Sequence[str]]]] = MappingProxyType(
    {"memory": _memory, "ranks": _ranks, "narrow": _narrow}
)
"""By the option that asks for it, what makes a page and names the rows that could not be read."""


def _add_measured(command: argparse.ArgumentParser) -> None:
    """Let the command take what `run_measured` reads, none of it with a default."""
    command.add_argument(
        "--device",
        type=Path,
        metavar="DEVICE.toml",
        help="of `calibrate`, for --measured, which writes its error there; made anew by default",
    )
    command.add_argument("--place", metavar="cpu|cuda", help="what --measured trains on (cpu)")
    command.add_argument(
        "--rounds", type=int, metavar="N", help=f"of --measured ({MEASURED_ROUNDS})"
    )
    command.add_argument("--seed", type=int, help="of --measured (0)")


def _measured(options: argparse.Namespace) -> None:
    """Time policies on this machine, print them beside their prices, and record the error."""
    rounds = MEASURED_ROUNDS if options.rounds is None else options.rounds
    number("--rounds", rounds, 2, 10**6)
    seed = options.seed or 0
    number("--seed", seed, 0, 2**31)
    place = place_of(options.place or "cpu", "--measured")
    from benchmarks.validation.measured import accuracy, measured_report
    from benchmarks.validation.pages.measured_page import measured_page
    from policysearch.verify.calibrate import FORMATS, calibrate

    rng = np.random.default_rng(seed)
    if options.device is None:
        device = calibrate(
            place.type, place, FORMATS[place.type], CALIBRATE_ROUNDS, rng, say_progress
        )
    else:
        device = read_device(options.device)
    if not device.timings.rows:
        raise InputError(f"--device: {options.device} has no timings; expected one of `calibrate`")
    results = measured_report(device, place, rounds, rng, say_progress)
    print(measured_page(results))
    if options.device is not None:
        name = options.device.stem
        write_device(replace(device, name=name, accuracy=accuracy(results)), options.device)


if __name__ == "__main__":
    sys.exit(validation())
