"""What the command line shares: arguments, safe streams, and commands that look at one policy."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from policysearch import api
from policysearch.cost.published import read_rows
from policysearch.cost.published_narrow import read_narrow_rows
from policysearch.cost.validate import validate
from policysearch.nn.model import Model
from policysearch.nn.models import MODELS
from policysearch.policy.policy_file import write_policy
from policysearch.report.front_data import csv_text
from policysearch.report.narrow_validation import narrow_page
from policysearch.report.noise_page import noise_page
from policysearch.report.one_trial import number_of, trial_page, tried_page
from policysearch.report.table import front_table
from policysearch.report.validation import validation_page
from policysearch.rewrite.placed_rules import overruled
from policysearch.search.results import Results
from policysearch.search.rules import rules_for
from policysearch.search.rules_file import read_rules, rules_file_of
from policysearch.search.spec import CostSection, StudySpec
from policysearch.train.tasks import Task
from policysearch.values import InputError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]


DIFF_COST = CostSection("H100-SXM5", "torch.compile")
"""What `explain --diff` models time on without a study."""


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


def say_overruled(spec: StudySpec) -> None:
    """Say which rules of the study win over which."""
    if spec.rules:
        model = spec.task.build_model(spec.task.load_dataset())
        for line in overruled(rules_for(spec.rules, model)):
            say(line)


def next_commands(results: Results, options: argparse.Namespace) -> str:
    """Return what to look at after a run, as two lines."""
    then = (
        f"noise {places(options)}"
        if results.cannot_rank
        else f"export {places(options)} --pick knee"
    )
    return f"next: policysearch show {places(options)} --csv\n      policysearch {then}"


def add_views(commands: Commands) -> None:
    """Add `show` and `noise`."""
    _add_show(commands)
    noise = commands.add_parser("noise", help="how sure the gaps are, and what would tell more")
    add_study(noise)
    noise.set_defaults(run=_noise)


def _noise(options: argparse.Namespace) -> None:
    print(noise_page(results_of(options)))


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


def add_try(commands: Commands) -> None:
    """Add `try`."""
    tried = commands.add_parser("try", help="train and price a policy of your own in a study")
    tried.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    tried.add_argument("--study", type=Path, metavar="STUDY.toml", required=True)
    add_storage(tried)
    tried.add_argument("--processes", type=int, metavar="N", help="training processes")
    tried.set_defaults(run=_try)


def add_explain(commands: Commands) -> None:
    """Add `explain`."""
    explain = commands.add_parser("explain", help="print the training step under a policy")
    explain.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    _add_task(explain)
    explain.add_argument("--diff", action="store_true", help="what each pass does to the step")
    explain.set_defaults(run=_explain)


def add_rules(commands: Commands) -> None:
    """Add `rules` and `apply`."""
    rules = commands.add_parser("rules", help="print the shortest rules that give a policy")
    rules.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    _add_task(rules)
    rules.set_defaults(run=_rules)
    apply = commands.add_parser("apply", help="make the policy that rules give for a model")
    apply.add_argument("rules", type=Path, metavar="RULES.toml", help="a file as `rules` prints it")
    _add_task(apply)
    apply.add_argument("--out", type=Path, metavar="FILE", help="a new policy file (the screen)")
    apply.set_defaults(run=_apply)


def add_validation(commands: Commands) -> None:
    """Add `validate-cost`."""
    command = commands.add_parser(
        "validate-cost", help="compare modeled speedups with published ones, each held out"
    )
    command.add_argument("--rows", type=Path, metavar="FILE", help="JSON rows (the package's)")
    command.add_argument(
        "--anchor", type=Path, metavar="FILE", help="rows of the same networks on other devices"
    )
    command.add_argument(
        "--narrow", action="store_true", help="rows of 8-bit and smaller formats over bfloat16"
    )
    command.set_defaults(run=_validate)


def _add_task(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--study", type=Path, metavar="STUDY.toml", help="use the study's task")
    where.add_argument("--model", default="lenet5", help=", ".join(MODELS))


def _task(options: argparse.Namespace) -> Task:
    return api.load_study(options.study).task if options.study else api.task_for(options.model)


def _model(options: argparse.Namespace) -> Model:
    task = _task(options)
    return task.build_model(task.load_dataset())


def _explain(options: argparse.Namespace) -> None:
    policy = api.policy_from(options.policy, _model(options))
    if not options.diff:
        print(api.explain(policy, _task(options)).rstrip("\n"))
        return
    cost = api.load_study(options.study).cost if options.study else DIFF_COST
    print(api.explain_passes(policy, _task(options), cost.device, cost.stack).rstrip("\n"))


def _rules(options: argparse.Namespace) -> None:
    model = _model(options)
    print(rules_file_of(api.policy_from(options.policy, model), model).text().rstrip("\n"))


def _apply(options: argparse.Namespace) -> None:
    given, model = read_rules(options.rules), _model(options)
    policy = given.policy(model, str(options.rules))
    for line in overruled(rules_for(given.rules, model)):
        say(line)
    if options.out is None:
        print(policy.to_json().rstrip("\n"))
        return
    write_policy(policy, options.out)
    print(f"wrote {options.out}")


def _validate(options: argparse.Namespace) -> None:
    if options.narrow:
        if options.anchor:
            raise InputError("--anchor: 8-bit rows take no anchors")
        print(narrow_page(read_narrow_rows(options.rows)))
        return
    anchors = read_rows(options.anchor) if options.anchor else ()
    print(validation_page(validate(read_rows(options.rows), anchors)))


def _show(options: argparse.Namespace) -> None:
    results = results_of(options)
    number = options.trial
    if options.policy is not None:
        digest = api.policy_for(options.policy, results.spec).digest
        number = number_of(results, digest, options.policy)
    if number is not None:
        print(trial_page(results, number))
    else:
        print(csv_text(results).rstrip("\n") if options.csv else front_table(results))


def _try(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    if options.processes is not None and options.processes < 1:
        raise InputError(f"--processes: {options.processes}; expected at least 1")
    policy = api.policy_for(options.policy, spec)
    results, number, new = api.try_policy(
        policy, spec, options.storage, processes=options.processes
    )
    print(tried_page(results, number, new))
    print(f"\nnext: policysearch show {places(options)} --trial {number}")


def make_streams_safe() -> None:
    """Let a closed stream swallow what is written, and any text be written in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush is silent."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(line: str) -> None:
    """Write a line to standard error, or nowhere if that is gone."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
