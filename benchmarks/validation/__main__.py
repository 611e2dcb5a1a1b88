"""Modeled speed beside published speed, and beside what this machine measures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from benchmarks.validation.aliases import read_aliases
from benchmarks.validation.anchored import known_of
from benchmarks.validation.graph_path import graph_judged, graph_page
from benchmarks.validation.known_file import PATH as HELD_OUT
from benchmarks.validation.known_file import package_settings, write_known
from benchmarks.validation.pages.memory_page import memory_validation_page
from benchmarks.validation.pages.narrow_page import judged_rows, narrow_page
from benchmarks.validation.pages.ranks_page import ranks_page
from benchmarks.validation.pages.speed_page import validation_page
from benchmarks.validation.published import SHIPPED, Row, row_of, shipped_rows
from benchmarks.validation.published_memory import SHIPPED as MEMORY_ROWS
from benchmarks.validation.published_memory import memory_row_of
from benchmarks.validation.published_narrow import SHIPPED as NARROW_ROWS
from benchmarks.validation.published_narrow import narrow_row_of
from benchmarks.validation.ranks import ranks_of
from benchmarks.validation.row_file import Fields, Read, read_file
from benchmarks.validation.validate import settings_of, validate
from benchmarks.validation.validate_memory import validate_memory
from policysearch.cli import Parser, main
from policysearch.commands.calibrate import CALIBRATE_ROUNDS, place_of, say_progress, write_device
from policysearch.commands.shared import refuse
from policysearch.cost.device_file import read_device
from policysearch.values import InputError, number

T = TypeVar("T")

MEASURED_ROUNDS = 20


def parser() -> Parser:
    """Return the parser of the command line."""
    command = Parser(
        prog="python -m benchmarks.validation",
        description="Compares modeled speedups with published ones, each held out.",
    )
    command.add_argument("--rows", type=Path, metavar="FILE", help="JSON rows (the package's)")
    command.add_argument(
        "--anchor", type=Path, metavar="FILE", help="JSON rows of related runs, say your own"
    )
    command.add_argument(
        "--aliases", type=Path, metavar="FILE", help="TOML: other names of devices and models"
    )
    kinds = command.add_mutually_exclusive_group()
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
        "--graph", action="store_true", help="networks as recorded graphs, beside their lists"
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
            ("rows", "anchor", "aliases"),
            "with --measured, which trains here; expected one of them",
        )
        _measured(options)
        return
    refuse(options, ("device", "place", "rounds", "seed"), "without --measured; expected both")
    if options.fit:
        refuse(options, ("rows", "anchor", "aliases"), "with --fit; expected one of them")
        write_known(known_of(package_settings()))
        print(f"wrote {HELD_OUT.name}")
        return
    if options.memory or options.ranks or options.narrow or options.graph:
        kinds = "--memory, --ranks, --narrow or --graph"
        refuse(options, ("anchor",), f"with {kinds}; expected no anchors there")
    kind = next((kind for kind in PAGES if getattr(options, kind, False)), "speed")
    page, refused = PAGES[kind](options)
    print("\n".join([page, *refusals(refused)]))


def refusals(refused: Sequence[str]) -> list[str]:
    """Return the lines that end a page: rows that could not be read, each with the reason."""
    return ["", f"not read, {len(refused)}:", *refused] if refused else []


def _read(
    options: argparse.Namespace,
    path: Path | None,
    shipped: str,
    build: Callable[[Fields], T | None],
) -> Read[T]:
    return read_file(path, shipped, build, read_aliases(options.aliases))


def _graph(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    read = _read(options, options.rows, SHIPPED[0], row_of)
    by_graph, unpriced = graph_judged(read.rows)
    _need(by_graph, [*read.refused, *(reason for _, reason in unpriced)], options.rows)
    return graph_page(by_graph, unpriced), read.refused


def _memory(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    read = _read(options, options.rows, MEMORY_ROWS, memory_row_of)
    memory = validate_memory(read.rows)
    _need(memory.judged, [*read.refused, *(reason for _, reason in memory.unbuilt)], options.rows)
    return memory_validation_page(memory), read.refused


def _ranks(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    ranks, left, refused = ranks_of(options.rows, read_aliases(options.aliases))
    _need(ranks, [*refused, *left], options.rows)
    return ranks_page(ranks, left), refused


def _narrow(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    read = _read(options, options.rows, NARROW_ROWS, narrow_row_of)
    judged, unbuilt = judged_rows(read.rows)
    _need(judged, [*read.refused, *(reason for _, reason in unbuilt)], options.rows)
    return narrow_page(judged, unbuilt), read.refused


def _shipped() -> Read[Row]:
    return Read(shipped_rows(), ())


def _speed(options: argparse.Namespace) -> tuple[str, Sequence[str]]:
    rows = _read(options, options.rows, SHIPPED[0], row_of) if options.rows else _shipped()
    anchors: Read[Row] = Read((), ())
    if options.anchor:
        anchors = _read(options, options.anchor, "", row_of)
    for path, read in ((options.rows, rows), (options.anchor, anchors)):
        if path:
            built, left_out = settings_of(read.rows)
            _need(built, [*read.refused, *(reason for _, reason in left_out)], path)
    page = validation_page(validate(rows.rows, anchors.rows))
    return page, (*rows.refused, *anchors.refused)


PAGES: Mapping[str, Callable[[argparse.Namespace], tuple[str, Sequence[str]]]] = MappingProxyType(
    {"graph": _graph, "memory": _memory, "ranks": _ranks, "narrow": _narrow, "speed": _speed}
)
"""By the option that asks for it, what makes a page and names the rows that could not be read."""


def _need(built: Sized, reasons: Sequence[str], path: Path | None) -> None:
    """Raise InputError with the first of the reasons where not one row could be built."""
    if not built:
        reason = reasons[0] if reasons else "there are none; expected at least one"
        raise InputError(f"{path}: no row could be built: {reason.removeprefix(f'{path}: ')}")


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
