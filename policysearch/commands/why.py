"""`why`: the neighbours of a policy in one layer, trained beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch import api
from policysearch.commands.shared import Commands, add_storage, at_least_one, policy_in
from policysearch.files import make_folder
from policysearch.policy.policy import Policy
from policysearch.report.one_trial import number_of
from policysearch.report.why_page import bought_page, why_page
from policysearch.study.questions.next_decision import next_decisions
from policysearch.study.questions.why import why
from policysearch.study.specification import StudySpec, objective_of, space_of


def add_why(commands: Commands) -> None:
    """Add `why`."""
    asked = commands.add_parser("why", help="train a layer one format wider and narrower, compare")
    what = "a trial of the study, a policy file, or preset:NAME"
    asked.add_argument("policy", metavar="POLICY", help=what)
    which = "with those decided together; without it, what one more decision would buy"
    asked.add_argument("layer", metavar="LAYER", nargs="?", help=which)
    asked.add_argument("--study", type=Path, metavar="STUDY.toml", required=True)
    add_storage(asked)
    asked.add_argument("--processes", type=int, metavar="N", help="training processes")
    asked.set_defaults(run=_why)


def _bought(spec: StudySpec, storage: Path | None, policy: Policy, source: str) -> str:
    results = api.load_results(spec, storage)
    trial = results.trial(number_of(results, policy, source))
    return bought_page(trial, next_decisions(results, trial, space_of(spec), objective_of(spec)))


def _why(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    at_least_one(options, "processes")
    if options.policy.isdecimal():
        policy = api.load_results(spec, options.storage).trial(int(options.policy)).policy
    else:
        policy = policy_in(spec, options.policy)
    if options.layer is None:
        print(_bought(spec, options.storage, policy, options.policy))
        return
    storage = options.storage or api.default_storage(spec)
    make_folder(storage.parent)
    found = why(spec, storage, policy, options.layer, processes=options.processes)
    print(why_page(found))
