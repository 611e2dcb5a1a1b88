"""`explain`, `rules` and `apply`: a policy beside a model, with nothing trained."""

from __future__ import annotations

import argparse
from pathlib import Path

import policysearch
from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_policy,
    add_task,
    check_policy,
    cost_of,
    model_of,
    policy_from,
    policy_of,
    say,
    source,
    task_of,
    viewed,
    with_clipping,
)


def _explain_arguments(explain: argparse.ArgumentParser) -> None:
    add_policy(explain)
    add_task(explain)
    explain.add_argument("--diff", action="store_true", help="what each pass does to the step")


def _explain(options: argparse.Namespace) -> None:
    check_policy(options.policy)
    task = with_clipping(task_of(options), options.policy)
    policy = policy_of(options, task.build_model(task.load_dataset()))
    if options.diff:
        cost = cost_of(viewed(options) if options.study else None)
        page = policysearch.explain_passes(policy, task, cost.device, cost.stack)
    else:
        page = policysearch.explain(policy, task)
    print(page.rstrip("\n"))


def _rules_arguments(rules: argparse.ArgumentParser) -> None:
    add_policy(rules)
    add_task(rules)


def _rules(options: argparse.Namespace) -> None:
    from policysearch.space.rules_file import rules_file_of

    check_policy(options.policy)
    model = model_of(options)
    print(rules_file_of(policy_from(options.policy, model), model).text().rstrip("\n"))


def _apply_arguments(apply: argparse.ArgumentParser) -> None:
    known = "a file as `rules` prints it"
    apply.add_argument("rules", type=source, metavar="RULES.toml", help=known)
    add_task(apply)
    apply.add_argument("--out", type=Path, metavar="FILE", help="a new policy file (the screen)")


def _apply(options: argparse.Namespace) -> None:
    from policysearch.policy.policy_file import write_policy
    from policysearch.rewrite.format_rules import overruled
    from policysearch.space.rules import rules_for
    from policysearch.space.rules_file import read_rules

    file, model = read_rules(options.rules), model_of(options)
    policy = file.policy(model, str(options.rules))
    placed = rules_for(file.rules, model)
    for line in overruled(placed):
        say(line)
    reached = {layer for rule in placed for layer in rule.layer_names}
    left = [name for name in model.layer_names if name not in reached]
    if placed and left:
        more = f" and {len(left) - 8} more" if len(left) > 8 else ""
        say(f"no rule reaches {', '.join(left[:8])}{more}: as in {file.base}")
    if options.out is None:
        print(policy.to_json().rstrip("\n"))
        return
    write_policy(policy, options.out)
    print(f"wrote {options.out}")


COMMANDS = (
    Command(
        250,
        "explain",
        "print the training step under a policy",
        _explain,
        _explain_arguments,
        example="explain preset:mindspore.O2 --model lenet5",
    ),
    Command(
        260,
        "rules",
        "print the shortest rules that give a policy",
        _rules,
        _rules_arguments,
        example="rules preset:mindspore.O2 --model lenet5",
    ),
    Command(
        350,
        "apply",
        "make the policy that rules give for a model",
        _apply,
        _apply_arguments,
        example="apply rules.toml --model lenet5 --out policy.json",
    ),
)
