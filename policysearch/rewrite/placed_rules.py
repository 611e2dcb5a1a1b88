"""Format rules resolved against one model, and applied to a policy of it in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer, usual_storage
from policysearch.rewrite.format_rules import (
    OFF,
    PARTS,
    FormatRule,
    Formats,
    LayerFunction,
    LayerMatch,
)
from policysearch.rewrite.matching import matches
from policysearch.values import InputError, near_miss

LISTS: Mapping[str, str] = MappingProxyType(
    {"low": "low_precision_ops", "fp32": "fp32_ops", "promote": "promote_ops"}
)
"""The op list of a policy that `run` means."""


@dataclass(frozen=True)
class PlacedRule:
    """A rule for one model: what it is called, and per layer what it sets, None the rule's own."""

    name: str
    rule: FormatRule
    layers: tuple[tuple[str, Formats | None], ...]

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(layer for layer, _ in self.layers)


Load = Callable[[str, str], object]
"""From where a function is named, and "file.py:function", to the function."""


def no_files(where: str, name: str) -> object:
    """Raise InputError: functions are not loaded here."""
    raise InputError(f"{where}: {name!r}; expected a rule without a function")


def placed_rules(
    rules: Iterable[FormatRule], graph: Graph, model: Model, load: Load = no_files
) -> tuple[PlacedRule, ...]:
    """Return the rules with the layers they match in `model`, whose forward pass `graph` is.

    Raises InputError, naming the rule, for one that matches nothing and is not optional.
    """
    placed: list[PlacedRule] = []
    for number, rule in enumerate(rules, 1):
        name = rule.name or str(number)
        where = f"rules: rule {name!r}"
        if any(name == other.name for other in placed):
            raise InputError(f"{where}: the name is there twice; expected each name once")
        found: tuple[tuple[str, Formats | None], ...]
        if rule.function:
            found = _called(where, load(f"{where}.function", rule.function), graph, model)
        elif rule.ops:
            found = ()
        else:
            found = tuple((layer, None) for layer in rule.match.layers(graph, model))
        if not (found or rule.optional or _runs(rule, graph)):
            raise InputError(f"{where}: {_missed(rule, graph, model)}")
        placed.append(PlacedRule(name, rule, found))
    return tuple(placed)


def _runs(rule: FormatRule, graph: Graph) -> bool:
    return any(node.source in rule.ops for node in graph.nodes)


def _missed(rule: FormatRule, graph: Graph, model: Model) -> str:
    valid = "a match, or optional = true"
    if rule.function:
        return f"{rule.function} matches nothing; expected {valid}"
    if rule.ops:
        return f"ops {list(rule.ops)} are not in the model; expected {valid}"
    given = {f.name: getattr(rule.match, f.name) for f in fields(LayerMatch)}
    said = ", ".join(f"{key} {value!r}" for key, value in given.items() if value not in ((), ""))
    hint = near_miss(rule.match.layer, model.layer_names)
    return f"match {said} fits no layer; expected {valid}{hint}"


def _called(
    where: str, found: object, graph: Graph, model: Model
) -> tuple[tuple[str, Formats | None], ...]:
    if not isinstance(found, LayerFunction):
        raise InputError(f"{where}.function: {type(found).__name__}; expected a layer_rule")
    said: dict[str, Formats | None] = {}
    for match in matches(graph, found.pattern, model.layer_types):
        try:
            given = found(match)
        except Exception as error:  # Whatever the user's own code does is said in one line.
            text = " ".join(str(error).split())
            at = f"node [{match.nodes[-1].id}] {match.nodes[-1].op.name}"
            failed = f"{type(error).__name__}: {text}; expected formats"
            raise InputError(f"{where}.function: at {at}: {failed}") from error
        layers = [node.layer for node in match.nodes if node.op.kind != "source"]
        every = given if isinstance(given, Mapping) else dict.fromkeys(layers, given)
        for layer, formats in every.items():
            if layer not in model.layer_names or not isinstance(formats, (str, LayerPolicy)):
                if formats is None:
                    continue
                valid = "a format or LayerPolicy for layers of the model"
                raise InputError(f"{where}.function: {layer!r}: {formats!r}; expected {valid}")
            said[layer] = formats
    return tuple((layer, said[layer]) for layer in model.layer_names if layer in said)


def apply_format_rules(
    policy: Policy, placed: Iterable[PlacedRule], chosen: Mapping[str, str] | None = None
) -> Policy:
    """Return the policy as the rules leave it, applied in order.

    `chosen` gives the option of each rule by its name, the first of its options where it has none.
    """
    layers = dict(policy.layers)
    lists = {name: list(getattr(policy, name)) for name in LISTS.values()}
    for each in placed:
        option = (chosen or {}).get(each.name, each.rule.options[0])
        if option == OFF:
            continue
        for layer, given in each.layers:
            formats = given or (option if each.rule.formats else None)
            new = _filled(formats, layers[layer], policy.master_weights)
            layers[layer] = replace(new, **each.rule.parts)
        if each.rule.run:
            for ops in lists.values():
                ops[:] = [op for op in ops if op not in each.rule.ops]
            lists[LISTS[each.rule.run]] += each.rule.ops
    named = {key: tuple(ops) for key, ops in lists.items()}
    return replace(policy, layers=tuple(layers.items()), **named)  # type: ignore[arg-type]


def _filled(formats: Formats | None, old: LayerPolicy, master_weights: bool) -> LayerPolicy:
    if formats is None or isinstance(formats, LayerPolicy):
        return formats or old
    param = "float32" if master_weights else usual_storage(formats)
    return uniform_layer(formats, param=param, accumulator=old.accumulator)


def overruled(placed: Iterable[PlacedRule]) -> tuple[str, ...]:
    """Return one line per pair of rules of which the later sets again what the earlier has set."""
    said = []
    earlier: list[PlacedRule] = []
    for each in placed:
        for other in earlier:
            both = [name for name in each.layer_names if name in other.layer_names]
            both += [op for op in each.rule.ops if op in other.rule.ops]
            if both and (_sets(each) & _sets(other) or not each.layers):
                said.append(f"rule {each.name!r} wins over rule {other.name!r}: {', '.join(both)}")
        earlier.append(each)
    return tuple(said)


def _sets(placed: PlacedRule) -> set[str]:
    whole = placed.rule.formats or placed.rule.function
    return {*PARTS} if whole else {*placed.rule.parts}
