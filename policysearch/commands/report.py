"""`report`: a study as one HTML page, or its numbers as JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from policysearch.commands.registry import Command
from policysearch.commands.shared import add_study, at_least_one, results_of, viewed
from policysearch.files import RESULTS_FOLDER, make_folder, write_whole
from policysearch.values import InputError

if TYPE_CHECKING:
    from policysearch.study.results.results import Results


def _arguments(report: argparse.ArgumentParser) -> None:
    add_study(report)
    report.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (results/<name>.html)"
    )
    watch = "write it again every S seconds until the study ends; the page reads itself again"
    how = report.add_mutually_exclusive_group()
    how.add_argument("--watch", type=int, metavar="S", help=watch)
    how.add_argument("--json", action="store_true", help="print what the page shows as JSON")


def _report(options: argparse.Namespace) -> None:
    from policysearch.report.page.data import page_data
    from policysearch.report.page.frame import page

    at_least_one(options, "watch")
    if options.json:
        print(json.dumps(page_data(results_of(options)), indent=2))
        return
    if options.watch is not None:
        _watch(options)
        return
    results = results_of(options)
    path = _path(options, results.spec.study.name)
    _write(path, page(results, str(options.study)))
    print(f"wrote {path}")


def _path(options: argparse.Namespace, name: str) -> Path:
    path: Path = options.out or RESULTS_FOLDER / f"{name}.html"
    if path.is_dir():
        raise InputError(f"--out: {path}: a folder; expected a file, say {path / name}.html")
    return path


def _write(path: Path, text: str) -> None:
    make_folder(path.parent)
    write_whole({path: text.encode()})


def _watch(options: argparse.Namespace) -> None:
    """Write the page every few seconds, whole each time, until the search has ended."""
    from policysearch.report.page.frame import failed_page, page

    name = viewed(options).study.name
    path = _path(options, name)
    print(f"writing {path} every {options.watch} s; Ctrl-C ends it", flush=True)
    while True:
        begun = time.monotonic()
        try:
            results: Results | None = results_of(options)
        except InputError as error:  # no results yet
            results = None
            _write(path, failed_page(name, str(error)))
        ended = results is not None and bool(results.stopped)
        if results is not None:
            _write(path, page(results, str(options.study), 0 if ended else options.watch))
        if ended:
            return
        # What a page takes to write is part of its period, not added to it.
        time.sleep(max(0.0, options.watch - (time.monotonic() - begun)))


COMMANDS = (
    Command(
        140,
        "report",
        "one HTML page of a study, to be looked at",
        _report,
        _arguments,
        example="report studies/mlp-digits.toml",
    ),
)
