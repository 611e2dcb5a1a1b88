"""Rules that say formats: the shortest form of a policy, and those that are often wanted.

`placed_rules` finds the layers of one model that they are for; `apply_format_rules` makes a policy
of them, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Literal

from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy, usual_storage
from policysearch.policy.presets import layer_named
from policysearch.policy.products import Products
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.matching import Match, matches
from policysearch.rewrite.patterns import Pattern, block_of, node
from policysearch.rewrite.stacks import layers_in, terms
from policysearch.values import USER_FAULTS, InputError, near_miss

PARTS = tuple(field.name for field in fields(LayerPolicy))
OFF, ON = "off", "on"
Formats = str | LayerPolicy


@dataclass(frozen=True)
class LayerMatch:
    """The layers that a rule is for: those that fit all of its keys; without a key, every layer.

    - `op`, `kind`: the layer has a node of one of these ops, and of one of these kinds ("gemm",
      "elementwise", "reduce", "move").
    - `layer_type`: its type is one of these ("Conv2d", "LayerNorm").
    - `layer`, `block`: regular expressions that its whole name fits, and that of its block.
    - `position` is its place among the layers with parameters, in the model's order: "ends" are the
      first and the last.
    - `blocks`, `leaf`, `stack` are for repeated stacks ("block1", "block2", ...): which blocks,
      which layers in each, and which stack where there are several. A leaf is the end of a name
      in its block; with a dot behind it, what the layer is inside. Such a rule is the same for a
      deeper net (`policysearch.rewrite.stacks`).
    """

    op: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    layer_type: tuple[str, ...] = ()
    layer: str = ""
    block: str = ""
    position: Literal["any", "first", "last", "ends"] = "any"
    leaf: tuple[str, ...] = ()
    blocks: str = ""
    stack: str = ""

    def __post_init__(self) -> None:
        terms(self.blocks or "all")
        node(kind=self.kind, layer=self.layer)
        try:
            node(layer=self.block)
        except InputError as error:
            raise InputError(str(error).replace("layer", "block", 1)) from None

    def layers(self, graph: Graph, model: Model) -> tuple[str, ...]:
        """Return the layers of `model` that fit, in its order; `graph` is its forward pass."""
        wanted = node(
            op=self.op,
            kind=self.kind,
            layer_type=self.layer_type,
            layer=self.layer,
            role="fprop",
        )
        names = {m.nodes[0].layer for m in matches(graph, Pattern((wanted,)), model.layer_types)}
        if self.block:
            names = {name for name in names if re.fullmatch(self.block, block_of(name))}
        if self.leaf or self.blocks or self.stack:
            names &= layers_in(model.layer_names, self.leaf, self.blocks, self.stack)
        if self.position != "any":
            owners = [name for name in model.layer_names if model.parameters_of(name)]
            ends = {"first": owners[:1], "last": owners[-1:], "ends": [owners[0], owners[-1]]}
            names &= set(ends[self.position])
        return tuple(name for name in model.layer_names if name in names)


@dataclass(frozen=True)
class FormatRule:
    """What layers that fit `match` compute in, or where ops run; a later rule wins.

    `formats` names the format of everything in the layer (below 16 bits, of operands alone), or a
    preset of narrow operands, which they take with its recipe ("te.nvfp4"). Of more than one, or
    where the rule is to `search`, which of them is a decision of the space; `search` adds "off".
    `compute`, `output`, `grad`, `wgrad`, `param`, `accumulator`, `gradient_sum` and `all_reduce`
    set one thing alone, as a policy file has them. `scaling` is the recipe of their operands in the
    place of the policy's, and `backward` "forward" multiplies high-precision gradients by the
    dequantised copies of the forward pass; `products` says single products in full. `ops` are put
    on the list `run`: "low", "fp32" or "promote"; such a rule matches no layers. `function` is
    "file.py:function", made by `policysearch.rewrite.format_rules.layer_rule`: it says the formats
    of what its pattern matches, and **the file is run**. A rule that matches nothing is an error,
    unless `optional`. `name` is what messages and decisions call the rule, its number from 1 where
    there is none.
    """

    name: str = ""
    match: LayerMatch = LayerMatch()
    formats: tuple[str, ...] = ()
    compute: str = ""
    output: str = ""
    grad: str = ""
    wgrad: str = ""
    param: str = ""
    accumulator: str = ""
    backward: Literal["", "tensor", "forward"] = ""
    scaling: Scaling | None = None
    products: Products = Products()
    gradient_sum: str | None = None
    all_reduce: str | None = None
    ops: tuple[str, ...] = ()
    run: Literal["", "low", "fp32", "promote"] = ""
    function: str = ""
    optional: bool = False
    search: bool = False

    def __post_init__(self) -> None:
        LayerPolicy(**self.parts)
        for name in self.formats:
            try:
                layer_named(name)
            except InputError as error:
                raise InputError(f"formats: {error}") from None
        if len(set(self.formats)) < len(self.formats):
            raise InputError(f"formats: {list(self.formats)}; expected different ones")
        if bool(self.ops) != bool(self.run):
            raise InputError(f"run: {self.run!r} with ops {list(self.ops)}; expected both or none")
        statements = [bool(self.formats or self.parts), bool(self.ops), bool(self.function)]
        if sum(statements) != 1:
            valid = "formats (or one of a layer's), ops with run, or function: one of these"
            raise InputError(f"name: {self.name!r} says {sum(statements)} things; expected {valid}")

    @property
    def parts(self) -> dict[str, Any]:
        """What of a layer the rule sets one by one."""
        return {
            part: given
            for part in PARTS
            if (given := getattr(self, part)) not in ("", None, Products())
        }

    @property
    def options(self) -> tuple[str, ...]:
        """What a search decides between: formats, or ON, and OFF; the first where it does not."""
        options = self.formats or (ON,)
        return (*options, OFF) if self.search else options


@dataclass(frozen=True)
class LayerFunction:
    """A user's function of a match, and the pattern it is for; made by `layer_rule`."""

    pattern: Pattern
    function: Callable[[Match], Formats | Mapping[str, Formats] | None]

    def __call__(self, match: Match) -> Formats | Mapping[str, Formats] | None:
        return self.function(match)


def layer_rule(
    pattern: Pattern,
) -> Callable[
    [Callable[[Match], Formats | Mapping[str, Formats] | None]],
    LayerFunction,
]:
    """Make a rule of a function that says the formats of what a pattern matches.

    It is called for every match in the float32 forward pass and returns a format or a
    `LayerPolicy` for the layers of all nodes matched, a mapping from layers to these, or None.
    """
    return lambda function: LayerFunction(pattern, function)


def half_function(*ops: str) -> FormatRule:
    """Return the rule that `ops` run in their layer's formats, as Apex's `half_function`."""
    return FormatRule(name=f"half {' '.join(ops)}", ops=ops, run="low")


def float_function(*ops: str, optional: bool = False) -> FormatRule:
    """Return the rule that `ops` run in float32, as Apex's `float_function`."""
    return FormatRule(name=f"float {' '.join(ops)}", ops=ops, run="fp32", optional=optional)


def norms_and_softmax_float32() -> FormatRule:
    """Return the rule that batch norm, layer norm and softmax run in float32, if there are any."""
    ops = ("batch_norm", "layer_norm", "softmax")
    return FormatRule(name="norm and softmax float32", ops=ops, run="fp32", optional=True)


def first_and_last(format: str) -> FormatRule:
    """Return the rule that the first and last layer with parameters compute in `format`."""
    match = LayerMatch(position="ends")
    return FormatRule(name=f"first and last {format}", match=match, formats=(format,))


def float32_gradients(layer: str) -> FormatRule:
    """Return the rule that layers that fit the expression have float32 gradients.

    Their operands of fprop stay as they are.
    """
    match = LayerMatch(layer=layer)
    name = f"float32 gradients {layer}"
    return FormatRule(name=name, match=match, grad="float32", wgrad="float32")


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
        layers: tuple[tuple[str, Formats | None], ...]
        if rule.function:
            layers = _formats_by_call(where, load(f"{where}.function", rule.function), graph, model)
        elif rule.ops:
            layers = ()
        else:
            layers = tuple((layer, None) for layer in _matched_layers(where, rule, graph, model))
        if not (layers or rule.optional or _runs(rule, graph)):
            raise InputError(f"{where}: {_no_match(rule, graph, model)}")
        placed.append(PlacedRule(name, rule, layers))
    return tuple(placed)


def _matched_layers(where: str, rule: FormatRule, graph: Graph, model: Model) -> tuple[str, ...]:
    try:
        return rule.match.layers(graph, model)
    except InputError as error:  # blocks beyond the net
        raise InputError(f"{where}: {error}") from None


def _runs(rule: FormatRule, graph: Graph) -> bool:
    return any(node.source in rule.ops for node in graph.nodes)


def _no_match(rule: FormatRule, graph: Graph, model: Model) -> str:
    valid = "a match, or optional = true"
    if rule.function:
        return f"{rule.function} matches nothing; expected {valid}"
    if rule.ops:
        return f"ops {list(rule.ops)} are not in the model; expected {valid}"
    given = {f.name: getattr(rule.match, f.name) for f in fields(LayerMatch)}
    said = ", ".join(f"{key} {value!r}" for key, value in given.items() if value not in ((), ""))
    hint = near_miss(rule.match.layer, model.layer_names)
    return f"match {said} fits no layer; expected {valid}{hint}"


def _formats_by_call(
    where: str, function: object, graph: Graph, model: Model
) -> tuple[tuple[str, Formats | None], ...]:
    if not isinstance(function, LayerFunction):
        raise InputError(f"{where}.function: {type(function).__name__}; expected a layer_rule")
    by_layer: dict[str, Formats | None] = {}
    for match in matches(graph, function.pattern, model.layer_types):
        try:
            answer = function(match)
        except USER_FAULTS as error:
            text = " ".join(str(error).split())
            at = f"node [{match.nodes[-1].id}] {match.nodes[-1].op.name}"
            failed = f"{type(error).__name__}: {text}; expected formats"
            raise InputError(f"{where}.function: at {at}: {failed}") from error
        layers = [node.layer for node in match.nodes if node.op.kind != "source"]
        every = answer if isinstance(answer, Mapping) else dict.fromkeys(layers, answer)
        for layer, formats in every.items():
            if layer not in model.layer_names or not isinstance(formats, (str, LayerPolicy)):
                if formats is None:
                    continue
                valid = "a format or LayerPolicy for layers of the model"
                raise InputError(f"{where}.function: {layer!r}: {formats!r}; expected {valid}")
            by_layer[layer] = formats
    return tuple((layer, by_layer[layer]) for layer in model.layer_names if layer in by_layer)


def apply_format_rules(
    policy: Policy, placed: Iterable[PlacedRule], chosen: Mapping[str, str] | None = None
) -> Policy:
    """Return the policy as the rules leave it, applied in order.

    `chosen` gives the option of each rule by its name, the first of its options where it has none.
    """
    layers = dict(policy.layers)
    lists = {name: list(getattr(policy, name)) for name in LISTS.values()}
    for row in placed:
        option = (chosen or {}).get(row.name, row.rule.options[0])
        if option == OFF:
            continue
        for layer, own in row.layers:
            formats = own or (option if row.rule.formats else None)
            new = _layer_of(formats, layers[layer], policy.master_weights)
            layers[layer] = replace(new, **row.rule.parts)
        if row.rule.run:
            for ops in lists.values():
                ops[:] = [op for op in ops if op not in row.rule.ops]
            lists[LISTS[row.rule.run]] += row.rule.ops
    named = {key: tuple(ops) for key, ops in lists.items()}
    return replace(policy, layers=tuple(layers.items()), **named)  # type: ignore[arg-type]


def _layer_of(formats: Formats | None, old: LayerPolicy, master_weights: bool) -> LayerPolicy:
    if formats is None or isinstance(formats, LayerPolicy):
        return formats or old
    param = "float32" if master_weights else usual_storage(layer_named(formats).compute)
    return layer_named(formats, param=param, accumulator=old.accumulator)


def overruled(placed: Iterable[PlacedRule]) -> tuple[str, ...]:
    """Return one line per pair of rules of which the later sets again what the earlier has set."""
    lines = []
    earlier: list[PlacedRule] = []
    for row in placed:
        for other in earlier:
            both = [name for name in row.layer_names if name in other.layer_names]
            both += [op for op in row.rule.ops if op in other.rule.ops]
            if both and (_sets(row) & _sets(other) or not row.layers):
                lines.append(f"rule {row.name!r} wins over rule {other.name!r}: {', '.join(both)}")
        earlier.append(row)
    return tuple(lines)


def _sets(placed: PlacedRule) -> set[str]:
    whole = placed.rule.formats or placed.rule.function
    return {*PARTS} if whole else {*placed.rule.parts}
