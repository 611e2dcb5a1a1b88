"""`explain`, `rules` and `apply`: a policy beside a model, with nothing trained."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch import api
from policysearch.commands.shared import Commands, add_task, model_of, policy_of, say, task_of
from policysearch.commands.sources import WITHOUT_STUDY, policy_from
from policysearch.policy.policy_file import write_policy
from policysearch.rewrite.format_rules import overruled
from policysearch.space.rules import rules_for
from policysearch.space.rules_file import read_rules, rules_file_of


def add_explain(commands: Commands) -> None:
    """Add `explain`."""
    explain = commands.add_parser("explain", help="print the training step under a policy")
    explain.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    add_task(explain)
    explain.add_argument("--diff", action="store_true", help="what each pass does to the step")
    explain.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> None:
    policy = policy_of(options, model_of(options))
    if not options.diff:
        print(api.explain(policy, task_of(options)).rstrip("\n"))
        return
    cost = api.load_study(options.study).cost if options.study else WITHOUT_STUDY
    print(api.explain_passes(policy, task_of(options), cost.device, cost.stack).rstrip("\n"))


def add_rules(commands: Commands) -> None:
    """Add `rules` and `apply`."""
    rules = commands.add_parser("rules", help="print the shortest rules that give a policy")
    rules.add_argument("policy", metavar="POLICY", help="a policy file, or preset:NAME")
    add_task(rules)
    rules.set_defaults(run=_rules)
    apply = commands.add_parser("apply", help="make the policy that rules give for a model")
    apply.add_argument("rules", type=Path, metavar="RULES.toml", help="a file as `rules` prints it")
    add_task(apply)
    apply.add_argument("--out", type=Path, metavar="FILE", help="a new policy file (the screen)")
    apply.set_defaults(run=_apply)


def _rules(options: argparse.Namespace) -> None:
    model = model_of(options)
    print(rules_file_of(policy_from(options.policy, model), model).text().rstrip("\n"))


def _apply(options: argparse.Namespace) -> None:
    given, model = read_rules(options.rules), model_of(options)
    policy = given.policy(model, str(options.rules))
    for line in overruled(rules_for(given.rules, model)):
        say(line)
    if options.out is None:
        print(policy.to_json().rstrip("\n"))
        return
    write_policy(policy, options.out)
    print(f"wrote {options.out}")
