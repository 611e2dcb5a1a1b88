"""`confirm`: the front of a study trained longer."""

from __future__ import annotations

import argparse

from policysearch import api
from policysearch.commands.shared import Commands, add_study, at_least_one
from policysearch.report.progress import Bar
from policysearch.report.table import confirmed_table
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec
from policysearch.study.workers.cluster import Cluster
from policysearch.values import InputError


def add_confirm(commands: Commands) -> None:
    """Add `confirm`: the front of a study, or all of it, trained longer."""
    confirm = commands.add_parser("confirm", help="train the front longer, on seeds of its own")
    add_study(confirm)
    confirm.add_argument("--steps", default="10x", metavar="10x|N", help="how long (10x)")
    confirm.add_argument("--seeds", type=int, default=1, metavar="K", help="seeds of each (1)")
    confirm.add_argument("--all", action="store_true", help="each policy, not the front alone")
    confirm.add_argument("--processes", type=int, metavar="N", help="training processes")
    confirm.set_defaults(run=_confirm)


def confirmed(
    options: argparse.Namespace,
    spec: StudySpec,
    factor: float,
    seeds: int,
    share: float | None = None,
    every: bool = False,
    executor: Cluster | None = None,
    retry_failed: bool = False,
) -> Results:
    """Train the front, or `every` policy, `factor` times longer, and return the results."""
    what = "runs that confirm " + ("each policy" if every else "the front")
    with Bar(what=what, beside=executor.status if executor else None) as bar:
        return api.confirm_study(
            spec,
            options.storage,
            factor=factor,
            seeds=seeds,
            share=share,
            every=every,
            retry_failed=retry_failed,
            processes=options.processes,
            progress=bar,
            executor=executor,
        )


def _confirm(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    at_least_one(options, "seeds", "processes")
    factor = _factor(options.steps, spec)
    results = confirmed(options, spec, factor, options.seeds, every=options.all, retry_failed=True)
    print(confirmed_table(results))


def _factor(text: str, spec: StudySpec) -> float:
    """Return how many times the task's steps `text` means: "10x", or a number of steps."""
    try:
        factor = float(text[:-1]) if text.endswith("x") else int(text) / spec.task.steps
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor < 1e6:
        raise InputError(
            f"--steps: {text!r}; expected a factor as 10x, or steps from the task's on"
        )
    return factor
