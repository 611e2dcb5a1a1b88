"""`validate-cost`: modeled speed beside published speed, and beside what this machine measures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence, Sized
from pathlib import Path

from policysearch.commands.measured import add_measured, run_measured
from policysearch.commands.shared import Commands, refuse
from policysearch.cost.published import read_rows
from policysearch.cost.published_memory import read_memory_rows
from policysearch.cost.published_narrow import read_narrow_rows
from policysearch.cost.ranks import ranks_of
from policysearch.cost.validate import settings_of, validate
from policysearch.cost.validate_memory import validate_memory
from policysearch.report.memory_validation import memory_validation_page
from policysearch.report.narrow_validation import judged_rows, narrow_page
from policysearch.report.ranks_page import ranks_page
from policysearch.report.validation import validation_page
from policysearch.values import InputError


def add_validation(commands: Commands) -> None:
    """Add `validate-cost`."""
    command = commands.add_parser(
        "validate-cost", help="compare modeled speedups with published ones, each held out"
    )
    command.add_argument("--rows", type=Path, metavar="FILE", help="JSON rows (the package's)")
    command.add_argument(
        "--anchor", type=Path, metavar="FILE", help="JSON rows of related runs, say your own"
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
    kinds.add_argument("--measured", action="store_true", help="train policies in torch here")
    add_measured(command)
    command.set_defaults(run=_validate)


def _validate(options: argparse.Namespace) -> None:
    if options.measured:
        refuse(
            options, ("rows", "anchor"), "with --measured, which trains here; expected one of them"
        )
        run_measured(options)
        return
    refuse(options, ("device", "place", "rounds", "seed"), "without --measured; expected both")
    if options.memory or options.ranks or options.narrow:
        refuse(
            options, ("anchor",), "with --memory, --ranks or --narrow; expected no anchors there"
        )
    if options.memory:
        memory = validate_memory(read_memory_rows(options.rows))
        _need(memory.judged, [reason for _, reason in memory.unbuilt], options.rows)
        print(memory_validation_page(memory))
        return
    if options.ranks:
        ranks, left = ranks_of(options.rows)
        _need(ranks, list(left), options.rows)
        print(ranks_page(ranks, left))
        return
    if options.narrow:
        judged, unbuilt = judged_rows(read_narrow_rows(options.rows))
        _need(judged, [reason for _, reason in unbuilt], options.rows)
        print(narrow_page(judged, unbuilt))
        return
    rows = read_rows(options.rows)
    anchors = read_rows(options.anchor) if options.anchor else ()
    for path, given in ((options.rows, rows), (options.anchor, anchors)):
        if path:
            built, left_out = settings_of(given)
            _need(built, [reason for _, reason in left_out], path)
    print(validation_page(validate(rows, anchors)))


def _need(built: Sized, reasons: Sequence[str], path: Path | None) -> None:
    """Raise InputError with the first of the reasons where not one row could be built."""
    if not built:
        reason = reasons[0] if reasons else "there are none; expected at least one"
        raise InputError(f"{path}: no row could be built: {reason}")
