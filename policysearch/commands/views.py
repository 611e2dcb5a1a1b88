"""`show`, `noise` and `try`: what is known of a study and of one policy in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch import api
from policysearch.commands.shared import (
    Commands,
    add_storage,
    add_study,
    at_least_one,
    places,
    policy_in,
    results_of,
)
from policysearch.report.front_data import csv_text
from policysearch.report.noise_page import noise_page
from policysearch.report.one_trial import number_of, trial_page, tried_page
from policysearch.report.table import front_table
from policysearch.study.results.results import Results


def add_views(commands: Commands) -> None:
    """Add `show` and `noise`."""
    _add_show(commands)
    noise = commands.add_parser("noise", help="how sure the gaps are, and what would tell more")
    add_study(noise)
    noise.set_defaults(run=_noise)


def _add_show(commands: Commands) -> None:
    show = commands.add_parser("show", help="print the front, or all that is known of one policy")
    add_study(show)
    what = show.add_mutually_exclusive_group()
    what.add_argument("--csv", action="store_true", help="every trained policy as CSV")
    what.add_argument(
        "--trial", type=int, metavar="N", help="counts, time and memory of this trial"
    )
    what.add_argument("--policy", help="the same of this policy file, or preset:NAME")
    show.set_defaults(run=_show)


def _show(options: argparse.Namespace) -> None:
    results = results_of(options)
    number = options.trial
    if options.policy is not None:
        policy = policy_in(results.spec, options.policy)
        number = number_of(results, policy, options.policy)
    if number is not None:
        print(trial_page(results, number))
    else:
        print(csv_text(results).rstrip("\n") if options.csv else front_table(results))


def _noise(options: argparse.Namespace) -> None:
    print(noise_page(results_of(options)))


def add_try(commands: Commands) -> None:
    """Add `try`."""
    tried = commands.add_parser("try", help="train and price a policy of your own in a study")
    tried.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    tried.add_argument("--study", type=Path, metavar="STUDY.toml", required=True)
    add_storage(tried)
    tried.add_argument("--processes", type=int, metavar="N", help="training processes")
    tried.set_defaults(run=_try)


def _try(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    at_least_one(options, "processes")
    policy = policy_in(spec, options.policy)
    results, number, new = api.try_policy(
        policy, spec, options.storage, processes=options.processes
    )
    print(tried_page(results, number, new))
    print(f"\nnext: policysearch show {places(options)} --trial {number}")


def next_commands(results: Results, options: argparse.Namespace) -> str:
    """Return what to look at after a run, a command a line.

    Where members of the front were not trained longer, what trains them: `run` stays in its budget.
    """
    study = places(options)
    left = [t for t in results.front if not (results.confirmation(t) or "float32" in t.presets)]
    what = f"{len(left)} of the front not trained longer yet"
    then = [f"show {study} --csv"]
    then += [f"noise {study}"] * bool(results.cannot_rank)
    then += [f"confirm {study}  # {what}"] * bool(left)
    then += [f"export {study} --pick knee"] * bool(results.front)
    return "next: " + "\n      ".join(f"policysearch {line}" for line in then)
