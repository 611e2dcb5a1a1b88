"""`try`, `why` and `propose`: what a study's own training runs answer about single policies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_policy,
    add_processes,
    add_storage,
    add_study,
    add_study_option,
    add_trust,
    add_wide,
    at_least_one,
    places,
    say,
    source,
    study_and_policy,
    viewed,
)
from policysearch.files import make_folder
from policysearch.values import one_of

if TYPE_CHECKING:
    from policysearch.policy.policy import Policy
    from policysearch.study.specification import StudySpec


def _try_arguments(command: argparse.ArgumentParser) -> None:
    add_policy(command)
    add_wide(command)
    add_study_option(command)
    add_storage(command)
    add_processes(command)


def _try(options: argparse.Namespace) -> None:
    from policysearch.report.one_trial import tried_page

    at_least_one(options, "processes")
    spec, policy = study_and_policy(options)
    for line in policysearch.preflight(policy, spec):
        say(f"before training: {line}")
    results, number, new = policysearch.try_policy(
        policy, spec, options.storage, processes=options.processes
    )
    print(tried_page(results, number, new))
    print(f"\nnext: policysearch show {places(options)} --trial {number}")


def _why_arguments(why: argparse.ArgumentParser) -> None:
    add_policy(why, "a trial of the study, ")
    which = "with those decided together; without it, what one more decision would buy"
    why.add_argument("layer", metavar="LAYER", nargs="?", help=which)
    add_study_option(why)
    add_storage(why)
    add_processes(why)


def _why(options: argparse.Namespace) -> None:
    from policysearch.api import default_storage
    from policysearch.report.why_page import why_page
    from policysearch.study.questions.why import why

    at_least_one(options, "processes")
    if options.policy.isdecimal():
        spec = viewed(options)
        policy = policysearch.load_results(spec, options.storage).trial(int(options.policy)).policy
        if options.layer is not None:
            one_of("layer", options.layer, [name for name, _ in policy.layers])
            spec = policysearch.load_study(options.study)
    else:
        spec, policy = study_and_policy(options)
    if options.layer is None:
        print(_one_more(spec, options.storage, policy, options.policy))
        return
    storage = options.storage or default_storage(spec)
    make_folder(storage.parent)
    print(why_page(why(spec, storage, policy, options.layer, processes=options.processes)))


def _one_more(spec: StudySpec, storage: Path | None, policy: Policy, source: str) -> str:
    """Return the page on what one more decision would buy a policy of the study."""
    from policysearch.report.one_trial import number_of
    from policysearch.report.why_page import bought_page
    from policysearch.study.questions.next_decision import next_decisions
    from policysearch.study.specification import objective_of, space_of

    results = policysearch.load_results(spec, storage)
    trial = results.trial(number_of(results, policy, source))
    return bought_page(trial, next_decisions(results, trial, space_of(spec), objective_of(spec)))


def _propose_arguments(propose: argparse.ArgumentParser) -> None:
    propose.add_argument("study", type=source, metavar="STUDY.toml")
    said = "instead, policies with the gap expected of each before any is trained"
    propose.add_argument("--probe", action="store_true", help=said)
    add_trust(propose)


def _propose(options: argparse.Namespace) -> None:
    from policysearch.study.questions.proposal import proposal
    from policysearch.study.questions.untrained import expectation

    lines = expectation if options.probe else proposal
    for line in lines(policysearch.load_study(options.study)):
        print(line, flush=True)


def _carry_arguments(command: argparse.ArgumentParser) -> None:
    add_study(command)
    large = "study file of the large net"
    command.add_argument("--to", type=source, metavar="STUDY.toml", required=True, help=large)
    known = "journal file of that study (results/<name>.journal)"
    command.add_argument("--to-storage", type=Path, metavar="FILE", help=known)
    command.add_argument(
        "--policies", type=int, default=6, metavar="N", help="policies to train there (6)"
    )
    add_processes(command)


def _carry(options: argparse.Namespace) -> None:
    from policysearch.report.carried_page import carried_page

    at_least_one(options, "processes")
    small, large = (policysearch.load_study(path) for path in (options.study, options.to))
    carried = policysearch.carry_study(
        small,
        large,
        options.storage,
        options.to_storage,
        policies=options.policies,
        processes=options.processes,
        progress=lambda line: say(f"policysearch: {line}"),
    )
    print(carried_page(carried))


COMMANDS = (
    Command(
        50,
        "try",
        "train and price a policy of your own in a study",
        _try,
        _try_arguments,
        example="try preset:te.current --study studies/mlp-digits.toml",
    ),
    Command(
        210,
        "why",
        "train a layer one format wider and narrower, compare",
        _why,
        _why_arguments,
        example="why 3 dense1 --study studies/mlp-digits.toml",
    ),
    Command(
        65,
        "carry",
        "what a small net's study comes to on a large net",
        _carry,
        _carry_arguments,
        example="carry studies/mlp-digits.toml --to large.toml",
    ),
    Command(
        230,
        "propose",
        "a loss-scale schedule and phase points that the float32 run suggests",
        _propose,
        _propose_arguments,
        example="propose studies/mlp-digits.toml",
    ),
)
