"""`validate-cost`: modeled speedups beside published ones, the package's or those of a file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence, Sized
from pathlib import Path

from policysearch.commands.registry import Command
from policysearch.commands.shared import add_trust
from policysearch.values import InputError


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rows", type=Path, metavar="FILE", help="JSON rows (the package's)")
    command.add_argument(
        "--anchor", type=Path, metavar="FILE", help="JSON rows of related runs, say your own"
    )
    command.add_argument(
        "--aliases", type=Path, metavar="FILE", help="TOML: other names of devices and models"
    )
    add_trust(command)


def _validate(options: argparse.Namespace) -> None:
    """Print the rows judged, and those that could not be read or built, each with the reason."""
    from policysearch.objective.published.aliases import read_aliases
    from policysearch.objective.published.judged import settings_of, validate
    from policysearch.objective.published.row_file import Read, read_file
    from policysearch.objective.published.rows import Row, row_of, shipped_rows
    from policysearch.report.validation_page import validation_page

    aliases = read_aliases(options.aliases)
    given: list[Read[Row]] = []
    for path, own in ((options.rows, shipped_rows()), (options.anchor, ())):
        read: Read[Row] = read_file(path, "", row_of, aliases) if path else Read(own, ())
        if path:
            built, left_out = settings_of(read.rows)
            need(built, [*read.refused, *(reason for _, reason in left_out)], path)
        given.append(read)
    rows, anchors = given
    page = validation_page(validate(rows.rows, anchors.rows))
    print("\n".join([page, *refusals((*rows.refused, *anchors.refused))]))


def refusals(refused: Sequence[str]) -> list[str]:
    """Return the lines that end a page: rows that could not be read, each with the reason."""
    return ["", f"not read, {len(refused)}:", *refused] if refused else []


def need(built: Sized, reasons: Sequence[str], path: Path | None) -> None:
    """Raise InputError with the first of the reasons where not one row could be built."""
    if not built:
        reason = reasons[0] if reasons else "there are none; expected at least one"
        raise InputError(f"{path}: no row could be built: {reason.removeprefix(f'{path}: ')}")


COMMANDS = (
    Command(
        425,
        "validate-cost",
        "say how far modeled speedups lie from published ones, each held out",
        _validate,
        _arguments,
    ),
)
