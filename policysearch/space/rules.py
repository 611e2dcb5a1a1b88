"""The rules of a study file: read from it, resolved against its model, and as decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.policy.presets import layer_named
from policysearch.rewrite.format_rules import LISTS, OFF, FormatRule, PlacedRule, placed_rules
from policysearch.train.step import SMALLEST_BATCH, trace_forward
from policysearch.train.user_code import function_of, is_user_code
from policysearch.values import InputError, from_plain, shown

FormatRules = tuple[FormatRule, ...]
"""The rules of a study file, in its order."""


def rules_from_data(data: Mapping[str, object], where: str) -> FormatRules:
    """Return the rules of the tables [[rules]] of `data`, none where there are none.

    Raises InputError, beginning with `where`, for what is not understood.
    """
    tables = data.get("rules", ())
    if not isinstance(tables, list | tuple):
        raise InputError(f"{where}: rules: {shown(tables)}; expected tables [[rules]]")
    return tuple(
        from_plain(FormatRule, each, f"{where}: rules[{i}]") for i, each in enumerate(tables)
    )


def rules_for(rules: Sequence[FormatRule], model: Model) -> tuple[PlacedRule, ...]:
    """Return the rules with the layers they match in `model`; files they name are run.

    Raises InputError, naming the rule, for one that matches nothing and is not optional.
    """
    if not rules:
        return ()
    return placed_rules(rules, trace_forward(model, SMALLEST_BATCH), model, _function_at)


def nearest_option(placed: PlacedRule, policy: Policy) -> str:
    """Return the option of a rule that `policy` looks like."""
    rule, options = placed.rule, placed.rule.options
    layers = [policy.layer(name) for name in placed.layer_names]
    for option in options:
        named = layer_named(option).compute if option in rule.formats else ""
        if named and all(layer.compute == named for layer in layers):
            return option
    if OFF not in options:
        return options[0]
    parts = all(getattr(each, k) == v for each in layers for k, v in rule.parts.items())
    run = not rule.run or set(rule.ops) <= set(getattr(policy, LISTS[rule.run]))
    return options[0] if parts and run and not rule.formats else OFF


def _function_at(where: str, name: str) -> object:
    if not is_user_code(name):
        raise InputError(f"{where}: {shown(name)}; expected file.py:function")
    path, _, function = name.rpartition(":")
    return function_of(where, path, function)
