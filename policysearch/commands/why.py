"""`why`: the neighbours of a policy in one layer, trained beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch import api
from policysearch.commands.shared import Commands, add_storage
from policysearch.commands.sources import policy_for
from policysearch.files import make_folder
from policysearch.report.why_page import why_page
from policysearch.search.why import why
from policysearch.values import InputError


def add_why(commands: Commands) -> None:
    """Add `why`."""
    asked = commands.add_parser("why", help="train a layer one format wider and narrower, compare")
    what = "a trial of the study, a policy file, or preset:NAME"
    asked.add_argument("policy", metavar="POLICY", help=what)
    asked.add_argument(
        "layer", metavar="LAYER", help="a layer, with those decided together with it"
    )
    asked.add_argument("--study", type=Path, metavar="STUDY.toml", required=True)
    add_storage(asked)
    asked.add_argument("--processes", type=int, metavar="N", help="training processes")
    asked.set_defaults(run=_why)


def _why(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    if options.processes is not None and options.processes < 1:
        raise InputError(f"--processes: {options.processes}; expected at least 1")
    if options.policy.isdecimal():
        policy = api.load_results(spec, options.storage).trial(int(options.policy)).policy
    else:
        policy = policy_for(options.policy, spec)
    storage = options.storage or api.default_storage(spec)
    make_folder(storage.parent)
    found = why(spec, storage, policy, options.layer, processes=options.processes)
    print(why_page(found))
