"""`export`: a policy of a study, picked by a rule, as JSON and as code of a framework."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import add_out, add_study, refuse
from policysearch.values import InputError

if TYPE_CHECKING:
    from policysearch.study.journal.trials import Trial
    from policysearch.study.results.results import Results


def _arguments(export: argparse.ArgumentParser) -> None:
    add_study(export)
    rules = export.add_mutually_exclusive_group()
    picks = "what the verdict names, or the member nearest to the ideal (knee)"
    rules.add_argument("--pick", choices=("verdict", "knee"), help=picks)
    rules.add_argument("--trial", type=int, metavar="N", help="the policy of this trial")
    rules.add_argument(
        "--fastest", action="store_true", help="the fastest (the default with --max-gap)"
    )
    rules.add_argument("--smallest", action="store_true", help="the one of least modeled memory")
    rules.add_argument("--fits", metavar="DEVICE", help="the fastest that fits there")
    export.add_argument("--batch", type=int, metavar="B", help="with --fits (the study's)")
    export.add_argument(
        "--max-gap",
        type=float,
        metavar="X",
        help="largest loss gap in nats, that of the confirmed training where there is one",
    )
    export.add_argument("--target", default="torch", help="what to write code for")
    export.add_argument(
        "--strict", action="store_true", help="refuse what the target runs otherwise"
    )
    add_out(export)


def _export(options: argparse.Namespace) -> None:
    from policysearch.report.one_trial import beside_baseline, exported_notes

    spec = policysearch.load_study(options.study)
    results = policysearch.load_results(spec, options.storage)
    trial = _picked_trial(results, options)
    notes = exported_notes(results, trial)
    running, different = policysearch.as_exported(trial.policy, spec, options.target)
    if different and options.strict:
        raise InputError(
            f"--strict: {different[0]} ({len(different)} such); expected a policy that "
            f'{options.target} runs as it is, as with study.target = "{options.target}"'
        )
    paths = policysearch.export_policy(trial.policy, spec, options.out, options.target, notes)
    print("\n".join((*notes, *(f"wrote {path}" for path in paths))))
    if different:
        results, number, _ = policysearch.try_policy(running, spec, options.storage)
        print(f"\nas {options.target} runs it:")
        trial = results.trial(number)
        print("\n".join(exported_notes(results, trial)))
    if beside := beside_baseline(results, trial):
        print(beside)


def _picked_trial(results: Results, options: argparse.Namespace) -> Trial:
    from policysearch.study.results.picks import fitting, smallest
    from policysearch.study.specification import objective_of

    if options.fits is None:
        refuse(options, ("batch",), "without --fits; expected both")
    if options.trial is not None:
        if options.max_gap is not None:
            raise InputError("--max-gap: given with --trial; expected one of them")
        return results.trial(options.trial)
    if options.fits is not None:
        there = objective_of(results.spec, options.fits, options.batch)
        return fitting(results, there, options.max_gap)
    if options.smallest:
        return smallest(results, options.max_gap)
    if options.fastest or options.max_gap is not None:
        if options.pick is not None:
            raise InputError(f"--max-gap: given with --pick {options.pick}; expected one of them")
        return policysearch.pick(results, "fastest", max_gap=options.max_gap)
    return policysearch.pick(results, options.pick or "knee")


COMMANDS = (Command(90, "export", "write a policy as JSON and as torch code", _export, _arguments),)
