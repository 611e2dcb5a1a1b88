"""Rules files: a policy as a preset, rules, and the settings in which it differs, in TOML."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from policysearch.files import read_text
from policysearch.nn.model import Model
from policysearch.policy.policy import CLIPPING, LayerPolicy, Layers, Policy, from_data, to_data
from policysearch.policy.presets import PRESETS, preset
from policysearch.policy.products import Products
from policysearch.rewrite.format_rules import (
    LISTS,
    FormatRule,
    LayerMatch,
    apply_format_rules,
    placed_rules,
)
from policysearch.rewrite.rules_of import Matches, rules_of
from policysearch.rewrite.stacks import Stack, stacks_of
from policysearch.space.rules import rules_for, rules_from_data
from policysearch.train.step import SMALLEST_BATCH, trace_forward
from policysearch.values import InputError, one_of, to_plain

KEYS = ("base", "policy", "rules")


@dataclass(frozen=True)
class RulesFile:
    """A policy of any model: the preset `base`, `rules` on it, and `settings` that it has not.

    `settings` are fields of a policy file other than its layers, `notes` comments on it. Where the
    settings give no name, what is not the base as it is does not go by its name.
    """

    base: str
    rules: tuple[FormatRule, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def policy(self, model: Model, where: str = "rules") -> Policy:
        """Return the policy of `model`; InputError where a rule matches nothing in it."""
        layers, base = _layers_apart(preset(self.base, model.layer_names))
        if self.rules or self.settings:
            base["name"] = f"{self.base} with rules"
        policy = replace(from_data({**base, **self.settings}, f"{where}: policy"), layers=layers)
        return apply_format_rules(policy, rules_for(self.rules, model))

    def text(self) -> str:
        """Return the file as TOML."""
        lines = [*(f"# {note}" for note in self.notes), f"base = {_toml(self.base)}"]
        if self.settings:
            lines += ["", "[policy]"]
            lines += [f"{key} = {_toml(value)}" for key, value in self.settings.items()]
        for rule in self.rules:
            parts = {f.name: getattr(rule, f.name) for f in fields(rule)}
            said = {k: v for k, v in parts.items() if v and v not in (LayerMatch(), Products())}
            lines += ["", "[[rules]]"]
            lines += [f"{key} = {_toml(_short(to_plain(v)))}" for key, v in said.items()]
        return "\n".join([*lines, ""])


def rules_file_of(policy: Policy, model: Model) -> RulesFile:
    """Return the shortest rules that give exactly this policy of `model`, layers in its order.

    Of all presets as the base, that with the fewest settings and rules is taken. Raises InputError
    where the policy has other layers than the model.
    """
    policy.check_layers(model.layer_names)
    names = [name for name, _ in policy.layers]
    graph = trace_forward(model, SMALLEST_BATCH)
    fitting, tried = Matches(graph, model), []
    _, wanted = _layers_apart(policy)
    for base in PRESETS:
        layers, data = _layers_apart(preset(base, names))
        settings = {"name": policy.name, **_settings(wanted, data)}
        start = replace(from_data({**data, **settings}), layers=layers)
        rules = rules_of(policy, start, fitting)
        rebuilt = apply_format_rules(start, placed_rules(rules, graph, model))
        lists = {name: list(getattr(policy, name)) for name in LISTS.values()}
        if any(list(getattr(rebuilt, name)) != ops for name, ops in lists.items()):
            rules, settings = tuple(r for r in rules if not r.run), {**settings, **lists}
        tried.append(RulesFile(base, rules, settings))
    best = min(tried, key=lambda said: (len(said.rules) + len(said.settings), len(said.text())))
    return replace(best, notes=tuple(_ambiguous(best, model)))


def _ambiguous(file: RulesFile, model: Model) -> Iterator[str]:
    """Yield what a net of few blocks cannot tell: blocks at the end from blocks of a number."""
    counts = {stack.name: len(stack.blocks) for stack in stacks_of(model.layer_names)}
    for rule in file.rules:
        blocks, names = rule.match.blocks, [rule.match.stack] if rule.match.stack else [*counts]
        if "last" in blocks or "to -" in blocks:
            of = ", ".join(f"{name} ({counts[name]} blocks)" for name in names)
            blind = "cannot tell blocks at the end from their numbers; ends are taken"
            yield f"{blocks!r}: {of} {blind}"


def blocks_between(small: Policy, large: Policy) -> tuple[str, ...]:
    """Return a sentence for each stack of another depth: which blocks rules made like which.

    `large` is what the rules of `small` give for another net. Nothing is said of a stack whose
    blocks are all alike in both, nor of one that a net has not.
    """
    here, there = (stacks_of(name for name, _ in policy.layers) for policy in (small, large))
    known = {stack.name: _formats(stack, small) for stack in here}
    said = [
        _between(stack.name, known[stack.name], _formats(stack, large))
        for stack in there
        if stack.name in known and len(stack.blocks) != len(known[stack.name])
    ]
    return tuple(filter(None, said))


def _formats(stack: Stack, policy: Policy) -> list[dict[str, LayerPolicy]]:
    layers = dict(policy.layers)
    return [{leaf: layers[name] for leaf, name in block.items()} for block in stack.blocks]


def _between(
    name: str, here: Sequence[Mapping[str, LayerPolicy]], there: Sequence[Mapping[str, LayerPolicy]]
) -> str:
    """Say which blocks of a stack are like which of its blocks here; "" if all are like all."""

    def alike(a: Mapping[str, LayerPolicy], b: Mapping[str, LayerPolicy]) -> bool:
        return all(a[leaf] == b[leaf] for leaf in a.keys() & b.keys())

    like = [[n for n, block in enumerate(here, 1) if alike(block, each)] for each in there]
    if all(len(numbers) == len(here) for numbers in like):
        return ""
    ends = ((1, 1, "first"), (len(there), len(here), "last"))
    kept = [end for place, number, end in ends if number in like[place - 1]]
    counts = Counter(numbers[0] if numbers else 0 for numbers in like[1:-1])
    middle = (
        f"{count} like its block {number} here" if number else f"{count} like no block here"
        for number, count in sorted(counts.items(), key=lambda pair: -pair[1])
    )
    taken = f"{' and '.join(kept)} taken for {' and '.join(kept)}" if kept else "no end is kept"
    between = f"; between, by the rules alone, {', '.join(middle)}" if counts else ""
    return f"{name}: {len(here)} blocks here, {len(there)} there: {taken}{between}"


def read_rules(path: Path) -> RulesFile:
    """Return the rules in the TOML file at `path`; InputError names the file and the place."""
    text, where = read_text(path, "a rules file in TOML"), str(path)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}; expected TOML") from None
    for key in data:
        one_of(f"{where}: key", key, KEYS)
    if "base" not in data:
        raise InputError(f"{where}: missing key 'base'; expected the preset that rules begin with")
    base = one_of(f"{where}: base", data["base"], PRESETS)
    settings = data.get("policy", {})
    if not isinstance(settings, dict) or "layers" in settings:
        raise InputError(f"{where}: policy: expected a table without layers, which rules say")
    if CLIPPING in settings:
        raise InputError(f"{where}: policy.{CLIPPING}: expected clip_norm of a task in its place")
    return RulesFile(base, rules_from_data(data, where), settings)


def _layers_apart(policy: Policy) -> tuple[Layers, dict[str, Any]]:
    """Return the layers of a policy, and it as plain data that says no more than their names."""
    plain = to_data(replace(policy, layers=(), phases=()))
    phases = to_data(policy)["phases"] if policy.phases else []
    return policy.layers, {**plain, "layers": {n: {} for n, _ in policy.layers}, "phases": phases}


def _settings(policy: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from the base, but layers and op lists; None is what is left out."""
    left_out = ("layers", "name", *LISTS.values())
    settings = {k: v for k, v in policy.items() if k not in left_out and v != base[k]}
    return {key: _without_none(value) for key, value in settings.items() if value is not None}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item for key, item in _without_none(value).items() if item and item != "any"}
    return value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        # TOML refuses a raw delete character, which JSON does not escape
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
