"""What several commands of the command line share, and the commands that look at one policy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policysearch import api
from policysearch.report.front_data import csv_text
from policysearch.report.table import front_table
from policysearch.search.results import Results

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]


def add_study(command: argparse.ArgumentParser) -> None:
    """Let the command take a study file, and the journal of its results."""
    command.add_argument("study", type=Path, metavar="STUDY.toml")
    add_storage(command)


def add_storage(command: argparse.ArgumentParser) -> None:
    """Let the command take the journal of a study's results."""
    command.add_argument(
        "--storage", type=Path, metavar="FILE", help="journal file (results/<name>.journal)"
    )


def places(options: argparse.Namespace) -> str:
    """Return the study file and its journal as they are given to a command."""
    storage = f" --storage {options.storage}" if options.storage else ""
    return f"{options.study}{storage}"


def results_of(options: argparse.Namespace) -> Results:
    """Return what the study that the command was given has found so far."""
    return api.load_results(api.load_study(options.study), options.storage)


def add_show(commands: Commands) -> None:
    """Add `show`."""
    show = commands.add_parser("show", help="print the front")
    add_study(show)
    show.add_argument("--csv", action="store_true", help="every trained policy as CSV")
    show.set_defaults(run=_show)


def _show(options: argparse.Namespace) -> None:
    results = results_of(options)
    print(csv_text(results).rstrip("\n") if options.csv else front_table(results))
