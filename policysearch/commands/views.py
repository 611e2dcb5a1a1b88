"""`show`, `noise` and `plot`: what is known of a study; `repair`: its journal made whole."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_study,
    check_policy,
    places,
    policy_in,
    results_of,
    viewed,
)
from policysearch.files import RESULTS_FOLDER, write_files
from policysearch.values import InputError

if TYPE_CHECKING:
    from policysearch.study.results.results import Results


def _show_arguments(show: argparse.ArgumentParser) -> None:
    add_study(show)
    what = show.add_mutually_exclusive_group()
    what.add_argument("--csv", action="store_true", help="every trained policy as CSV")
    what.add_argument("--json", action="store_true", help="the verdict and its numbers as JSON")
    what.add_argument(
        "--trial", type=int, metavar="N", help="counts, time and memory of this trial"
    )
    what.add_argument("--policy", help="the same of this policy file, or preset:NAME")


def _show(options: argparse.Namespace) -> None:
    from policysearch.report.one_trial import number_of, trial_page
    from policysearch.report.table import csv_text, front_table

    if options.policy is not None:
        check_policy(options.policy)
    results = results_of(options)
    number = options.trial
    if options.policy is not None:
        policy = policy_in(results.spec, options.policy)
        number = number_of(results, policy, options.policy)
    if options.json:
        verdict = results.verdict.as_dict()
        print(json.dumps({"study": results.spec.study.name, "verdict": verdict}, indent=2))
    elif number is not None:
        print(trial_page(results, number))
    else:
        print(csv_text(results).rstrip("\n") if options.csv else front_table(results))


def _noise(options: argparse.Namespace) -> None:
    from policysearch.report.noise_page import noise_page

    print(noise_page(results_of(options)))


def _plot_arguments(plot: argparse.ArgumentParser) -> None:
    add_study(plot)
    where = "a folder, or a file that ends in .png, .svg or .pdf"
    plot.add_argument("--out", type=Path, default=RESULTS_FOLDER, metavar="DIR|FILE", help=where)
    axis = "what stands upright in that file (speedup)"
    plot.add_argument("--axis", choices=("speedup", "memory"), help=axis)


def _plot(options: argparse.Namespace) -> None:
    results = results_of(options)
    if options.out.suffix and not options.out.is_dir():
        results.plot(options.out, axis=options.axis or "speedup")
        print(f"wrote {options.out}")
        return
    if options.axis is not None:
        raise InputError(f"--axis: {options.axis} with a folder; expected --out FILE.svg or so")
    write_plots(results, options.out)


def write_plots(results: Results, folder: Path) -> None:
    """Write the plots of a study and say where."""
    from policysearch.report.plots import plots

    name = results.spec.study.name
    images = {f"{name}-{view}.png": image for view, image in plots(results).items()}
    for path in write_files(images, folder):
        print(f"wrote {path}")


def next_commands(results: Results, options: argparse.Namespace) -> str:
    """Return what to look at after a run, a command a line.

    Where members of the front were not trained longer, what trains them: `run` stays in its budget.
    """
    study, share = places(options), results.spec.study.confirm_share
    left = [t for t in results.front if not (results.confirmation(t) or "float32" in t.presets)]
    what = f"{len(left)} of the front not trained longer yet"
    if share and not (options.no_confirm or results.unconfirmed):
        what += f": confirm_share = {share:g} of the steps of the search are too few"
    then = [f"show {study} --csv"]
    then += [f"noise {study}"] * bool(results.cannot_rank)
    then += [f"confirm {study}  # {what}"] * bool(left)
    then += [f"export {study}"] * bool(results.front)
    return "next: " + "\n      ".join(f"policysearch {line}" for line in then)


def _repair(options: argparse.Namespace) -> None:
    repair = policysearch.repair_study(viewed(options), options.storage)
    if repair.copy is None:
        print(f"nothing to repair: {repair.kept} intact records")
        return
    print("\n".join(repair.damage))
    print(f"kept {repair.kept} intact records; the damaged file is {repair.copy}")
    print(f"next: policysearch run {places(options)}")


COMMANDS = (
    Command(
        110,
        "show",
        "print the front, or all that is known of one policy",
        _show,
        _show_arguments,
        example="show studies/mlp-digits.toml --trial 3",
    ),
    Command(
        120,
        "noise",
        "how sure the gaps are, and what would tell more",
        _noise,
        add_study,
        example="noise studies/mlp-digits.toml",
    ),
    Command(
        130,
        "plot",
        "draw the loss gap against modeled speed and memory",
        _plot,
        _plot_arguments,
        example="plot studies/mlp-digits.toml --out front.svg",
    ),
    Command(
        410,
        "repair",
        "save every intact trial of a damaged journal",
        _repair,
        add_study,
        example="repair studies/mlp-digits.toml",
    ),
)
