"""The command line: `policysearch run`, `show`, `plot`, `export`, `explain` and the listings."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from policysearch import api
from policysearch.commands.calibrate import add_calibrate
from policysearch.commands.confirm import add_confirm, confirmed
from policysearch.commands.export import add_export
from policysearch.commands.policies import add_explain, add_rules
from policysearch.commands.profile import add_profile
from policysearch.commands.propose import add_propose
from policysearch.commands.shared import (
    add_out,
    add_study,
    at_least_one,
    cluster_of,
    drop_output,
    make_streams_safe,
    places,
    results_of,
    say,
    say_overruled,
)
from policysearch.commands.verify import add_verify
from policysearch.commands.views import add_try, add_views, next_commands
from policysearch.commands.why import add_why
from policysearch.files import make_folder
from policysearch.report import listings
from policysearch.report.progress import Bar
from policysearch.report.study_file import study_file_page
from policysearch.report.table import front_table
from policysearch.rounding.rounder import FASTS
from policysearch.study.results.idle import idle_lines
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, space_of
from policysearch.study.workers.cluster import Cluster
from policysearch.values import InputError, near_miss

USER_ERROR = 2
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """Reports a mistake as one line."""

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            message += near_miss(choice[1], choice[2].replace("'", "").split(", "))
        self.exit(USER_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"policysearch {metadata.version('policysearch')}")
        parser.exit(0)


def parser() -> Parser:
    """Return the parser of the command line; each command sets `run` to its function."""
    finds = "Finds the mixed-precision training policies worth using for a net, recipe and device."
    top = Parser(prog="policysearch", description=finds)
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and stop")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    _add_run(commands)
    add_confirm(commands)
    add_views(commands)
    add_try(commands)
    add_why(commands)
    add_propose(commands)
    plot = commands.add_parser("plot", help="draw the loss gap against modeled speed and memory")
    add_study(plot)
    add_out(plot)
    plot.set_defaults(run=_plot)

    add_export(commands)
    add_verify(commands)
    add_explain(commands)
    add_rules(commands)
    add_profile(commands)
    add_calibrate(commands)
    mend = commands.add_parser("repair", help="save every intact trial of a damaged journal")
    add_study(mend)
    mend.set_defaults(run=_repair)
    _add_listings(commands)
    return top


def _add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    run = commands.add_parser("run", help="search; goes on with a study that was interrupted")
    add_study(run)
    run.add_argument("--trials", type=int, metavar="N", help="policies to train, in all")
    run.add_argument("--processes", type=int, metavar="N", help="training processes (one per core)")
    run.add_argument(
        "--cluster", metavar="ADDRESS|local:N", help="train on the workers of a dask scheduler"
    )
    run.add_argument("--fast", choices=FASTS, help="what emulates; the results are the same")
    run.add_argument(
        "--accept-changes",
        action="store_true",
        help="add to results that other code or libraries made; recorded",
    )
    run.add_argument(
        "--no-confirm", action="store_true", help="leave out the longer runs of the front"
    )
    run.add_argument(
        "--retry-failed", action="store_true", help="start runs again that were recorded as failed"
    )
    add_out(run)
    run.set_defaults(run=_run)


def _add_listings(commands: argparse._SubParsersAction[Parser]) -> None:
    for name, listing, text in (
        ("presets", listings.presets, "list the presets"),
        ("formats", listings.formats, "list the number formats"),
        ("hardware", listings.hardware, "list devices and software stacks"),
        ("keys", study_file_page, "list the keys of a study file"),
    ):
        commands.add_parser(name, help=text).set_defaults(run=_list, listing=listing)


def main(arguments: Sequence[str] | None = None, made: Callable[[], Parser] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a user's mistake, 130 for Ctrl-C.

    `made` makes another parser than `parser`, whose commands set `run` as well.
    """
    make_streams_safe()
    options = (made or parser)().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except InputError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        say("policysearch: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()  # The reader of our output left, as `head` does.
    except OSError as error:
        drop_output()
        return _refuse(f"{error.filename or 'output'}: {error.strerror}; expected room and access")
    except MemoryError:
        return _refuse("memory: not enough for this; expected a smaller task or a larger machine")
    return 0


def _refuse(message: str) -> int:
    say(f"policysearch: {' '.join(message.split())}")
    return USER_ERROR


def _run(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    at_least_one(options, "trials", "processes")
    make_folder(options.out)
    say_overruled(spec)
    on = f" --cluster {options.cluster}" if options.cluster else ""
    try:
        with cluster_of(options) as cluster:
            results = _searched(options, spec, cluster)
    except KeyboardInterrupt:
        say(
            f"policysearch: interrupted; `policysearch run {places(options)}{on}` goes on from here"
        )
        raise SystemExit(INTERRUPTED) from None
    print(front_table(results))
    print("\n".join(["", *idle_lines(results, space_of(spec))]))
    _write_plots(results, options.out)
    print(next_commands(results, options))


def _searched(options: argparse.Namespace, spec: StudySpec, cluster: Cluster | None) -> Results:
    with Bar(
        options.trials or spec.study.trials, beside=cluster.status if cluster else None
    ) as bar:
        results = api.run_study(
            spec,
            options.storage,
            trials=options.trials,
            processes=options.processes,
            fast=options.fast,
            progress=bar,
            accept_changes=options.accept_changes,
            retry_failed=options.retry_failed,
            executor=cluster,
        )
    if options.no_confirm or not spec.study.confirm_share or not results.front:
        return results
    study = spec.study
    return confirmed(
        *(options, spec, study.confirm_factor, 1, study.confirm_share),
        executor=cluster,
        retry_failed=options.retry_failed,
    )


def _plot(options: argparse.Namespace) -> None:
    _write_plots(results_of(options), options.out)


def _write_plots(results: Results, folder: Path) -> None:
    # Matplotlib takes a second to import, which only plotting should wait for.
    from policysearch.report.plots import plots

    name = results.spec.study.name
    made = {f"{name}-{view}.png": image for view, image in plots(results).items()}
    for path in api.write_files(made, folder):
        print(f"wrote {path}")


def _repair(options: argparse.Namespace) -> None:
    done = api.repair_study(api.load_study(options.study), options.storage)
    if done.copy is None:
        print(f"nothing to repair: {done.kept} intact records")
        return
    print("\n".join(done.damage))
    print(f"kept {done.kept} intact records; the damaged file is {done.copy}")
    print(f"next: policysearch run {places(options)}")


def _list(options: argparse.Namespace) -> None:
    print(options.listing())
