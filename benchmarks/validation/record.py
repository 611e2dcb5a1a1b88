"""Records networks as graphs: `python -m benchmarks.validation.record [NAME ...]`; needs torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from benchmarks.validation.recorded_table import MAKERS, records
from policysearch.cli import Parser, main
from policysearch.importers.record import record_of
from policysearch.objective.published.models import record_path
from policysearch.values import one_of


def parser() -> Parser:
    """Return the parser of the command line."""
    command = Parser(
        prog="python -m benchmarks.validation.record",
        description="Writes the networks of published rows as graphs, the same bytes every time.",
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="networks (all by default)")
    command.set_defaults(run=_record)
    return command


def _record(options: argparse.Namespace) -> None:
    for name in options.names:
        one_of("NAME", name, tuple(MAKERS))
    for name, length in records():
        if not options.names or name in options.names:
            path = record_path(name, length)
            path.write_bytes(recorded(name, length))
            print(f"{path.name}: {path.stat().st_size} bytes", flush=True)


def recorded(name: str, length: int) -> bytes:
    """Return the record of a network of MAKERS, made anew by its torch module."""
    from policysearch.importers.torch_export import from_torch

    row = MAKERS[name]
    file, function = row.function.split(".")
    maker = getattr(import_module(f"benchmarks.validation.modules.{file}"), function)
    module, inputs = maker(*row.arguments, *([length] if length else []))
    return record_of(from_torch(module, inputs, loss=row.loss, name=name))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return main(arguments, parser())


if __name__ == "__main__":
    sys.exit(run())
