"""Rules: a pattern, and what becomes of each place where it is found.

A `Rule` changes a graph in places. Where every node changes, as under a policy, a `sweep` builds
the graph anew, once and in order: at every node, the first `Conversion` that fits says what it
becomes. A `RuledModel` is a model under rules, wherever it is traced.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Literal

import numpy as np

from policysearch.graph import FloatArray, Graph, Node
from policysearch.nn.model import NEXT, Attention, Input, Model, ParameterSpec, Traced
from policysearch.ops.builder import Builder
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.matching import NO_TYPES, Match, Search, Surroundings, disjoint, matches
from policysearch.rewrite.patterns import Pattern, Wanted, kind_of
from policysearch.values import USER_FAULTS, InputError

Stage = Literal["evaluation", "forward", "step", "formats"]
"""What a rule is applied to: the forward pass of evaluation alone; that of training too, before
gradients are made; the whole float32 step; the step that has its formats and casts."""


@dataclass(frozen=True)
class Rule:
    """`change` is called once with the matches of `pattern`, in order.

    Of matches that share a node the first is taken, or all where they may be `overlapping`. A rule
    that matches nothing is an error, unless `optional`.
    """

    name: str
    pattern: Pattern
    change: Callable[[Editor, Sequence[Match]], None]
    stage: Stage = "forward"
    optional: bool = False
    overlapping: bool = False


@dataclass(frozen=True)
class Pass:
    """What one rule did to a graph: `matched` places, and the graphs `before` and `after`.

    `by_rule` says, for a pass of several rules, how many places each of them took.
    """

    name: str
    matched: int
    before: Graph
    after: Graph
    copies: tuple[tuple[str, str], ...] = ()
    by_rule: tuple[tuple[str, int], ...] = ()

    @property
    def changed(self) -> int:
        """How many nodes of `after` are not in `before`, or read other nodes there."""
        before, after = (Counter(node_lines(graph)) for graph in (self.before, self.after))
        return (after - before).total()

    @property
    def casts_removed(self) -> int:
        """How many casts fewer there are; negative where there are more."""
        return _casts(self.before) - _casts(self.after)


def rule(
    pattern: Pattern,
    *,
    name: str = "",
    stage: Stage = "forward",
    optional: bool = False,
    overlapping: bool = False,
) -> Callable[[Callable[[Editor, Match], None]], Rule]:
    """Make a rule of a function that changes the graph at one match.

    It is called after the function, unless it has a `name` of its own. Whatever the function raises
    is said as an InputError that names rule and node.
    """

    def decorate(function: Callable[[Editor, Match], None]) -> Rule:
        @functools.wraps(function)  # so that its source can be had
        def change(edit: Editor, places: Sequence[Match]) -> None:
            for match in places:
                edit.begin()
                try:
                    function(edit, match)
                except InputError:
                    raise
                except USER_FAULTS as error:
                    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                    raise edit.refuse(match.nodes[-1], f"{reason}; expected it to run") from error

        return Rule(name or function.__name__, pattern, change, stage, optional, overlapping)

    return decorate


def apply_rule(graph: Graph, rule: Rule, layer_types: Mapping[str, str] = NO_TYPES) -> Pass:
    """Apply one rule wherever its pattern is found.

    Raises InputError, naming the rule, where it matches nothing and is not optional, and naming
    the node too where what it makes does not fit.
    """
    places = matches(graph, rule.pattern, layer_types)
    places = places if rule.overlapping else disjoint(places)
    if not places and not rule.optional:
        raise InputError(f"rule {rule.name!r}: matches no node; expected a match, or optional")
    edit = Editor(graph, rule.name)
    rule.change(edit, places)
    after = edit.finished() if places else graph
    return Pass(rule.name, len(places), graph, after, tuple(edit.copies))


def apply_rules(
    graph: Graph, rules: Iterable[Rule], layer_types: Mapping[str, str] = NO_TYPES
) -> tuple[Graph, tuple[Pass, ...]]:
    """Apply rules in order, each to what the one before it left; return the graph and the passes.

    Raises InputError as `apply_rule`.
    """
    passes: list[Pass] = []
    for rule in rules:
        passes.append(apply_rule(graph, rule, layer_types))
        graph = passes[-1].after
    return graph, tuple(passes)


def node_lines(graph: Graph) -> list[str]:
    """Return one line per node that says all but its number: what it does, on what, as what."""
    names = [_node_name(node) for node in graph.nodes]
    return [
        f"{names[node.id]} {node.format} <- {'; '.join(names[i] for i in node.inputs) or '-'}"
        for node in graph.nodes
    ]


def _node_name(node: Node) -> str:
    return f"{node.role} {node.layer or '-'} {node.op.name} {node.name}".rstrip()


def _casts(graph: Graph) -> int:
    return sum(node.op.converts for node in graph.nodes)


Becomes = Callable[..., int | None]
"""Of the state of the sweep and the nodes of a match, in the pattern's order."""


@dataclass(frozen=True)
class Conversion:
    """`becomes` is called where `pattern` is found with its first node as the one at hand.

    It emits what that node becomes and returns the new id, or None to leave it to the next rule.
    The nodes are those of the old graph; of several matches at one node the first is taken.
    """

    name: str
    pattern: Pattern
    becomes: Becomes


def conversion(pattern: Pattern | Wanted, *, name: str = "") -> Callable[[Becomes], Conversion]:
    """Make a rule of a sweep of a function, after which it is called unless it has a `name`."""
    whole = Pattern((pattern,)) if isinstance(pattern, Wanted) else pattern
    return lambda becomes: Conversion(name or becomes.__name__, whole, becomes)


def sweep(
    graph: Graph,
    rules: Sequence[Conversion],
    state: object,
    new: dict[int, int],
    layer_types: Mapping[str, str] = NO_TYPES,
) -> tuple[tuple[str, int], ...]:
    """Go through the nodes once, in order, and note in `new` what each became.

    Rules are consulted in order. Returns how many nodes each has converted, by its name. Raises
    InputError, naming the node, where none takes it.
    """
    asked = _RulesByKind(graph, rules, layer_types)
    counts = dict.fromkeys((rule.name for rule in rules), 0)
    for node in graph.nodes:
        for rule, nodes in asked.at(node):
            new_id = rule.becomes(state, *nodes)
            if new_id is not None:
                new[node.id] = new_id
                counts[rule.name] += 1
                break
        else:
            where = f"node [{node.id}] {node.op.name} of layer {node.layer!r}"
            valid = ", ".join(rule.name for rule in rules)
            raise InputError(f"{where}: no rule takes it; expected one of {valid} to")
    return tuple(counts.items())


class _RulesByKind:
    """Which rules are asked at a node: by its kind, then by all else where that decides nothing."""

    def __init__(
        self, graph: Graph, rules: Sequence[Conversion], layer_types: Mapping[str, str]
    ) -> None:
        around = Surroundings(graph, layer_types)
        self.rules = [
            (rule, None if _is_kind_alone(rule.pattern) else Search(around, rule.pattern))
            for rule in rules
        ]
        self.by_kind: dict[tuple[str, ...], list[tuple[Conversion, Search | None]]] = {}

    def at(self, node: Node) -> Iterator[tuple[Conversion, tuple[Node, ...]]]:
        kind = kind_of(node)
        if kind not in self.by_kind:
            self.by_kind[kind] = [
                (rule, search)
                for rule, search in self.rules
                if rule.pattern.nodes[0].fits_kind(node)
            ]
        for rule, search in self.by_kind[kind]:
            if search is None:
                yield rule, (node,)
            else:
                match = next(search.at(node), None)
                if match is not None:
                    yield rule, match.nodes


def _is_kind_alone(pattern: Pattern) -> bool:
    return len(pattern.nodes) == 1 and pattern.nodes[0].fits_anywhere


OUTPUT, LOSS = "logits", "loss"


@dataclass(frozen=True, eq=False, repr=False)
class RuledModel(Model):
    """`model` with `rules` of the stages "evaluation" and "forward" applied where they hold.

    Gradients are made after them, so they are those of the changed pass; rules of the stage "step"
    are applied where a whole step is traced. Inputs, layers, parameters and statistics are the
    model's own. Raises InputError for a rule of another stage, and in `trace` as `apply_rule` does.
    """

    model: Model
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule.stage == "formats":
                valid = "evaluation, forward or step"
                raise InputError(f"rule {rule.name!r}: stage {rule.stage!r}; expected {valid}")

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.model.name

    @property
    def inputs(self) -> tuple[Input, ...]:  # type: ignore[override]
        return self.model.inputs

    @property
    def loss(self) -> str:  # type: ignore[override]
        return self.model.loss

    @property
    def labels(self) -> str:  # type: ignore[override]
        return self.model.labels

    @property
    def constants(self) -> Mapping[str, FloatArray]:  # type: ignore[override]
        return self.model.constants

    @property
    def attention(self) -> Attention:  # type: ignore[override]
        return self.model.attention

    @property
    def optimizer_state(self) -> Mapping[str, FloatArray]:  # type: ignore[override]
        return self.model.optimizer_state

    @property
    def updates_done(self) -> int:  # type: ignore[override]
        return self.model.updates_done

    @property
    def layer_names(self) -> tuple[str, ...]:
        return self.model.layer_names

    @property
    def layer_types(self) -> Mapping[str, str]:
        return self.model.layer_types

    def without_inner_masks(self) -> Model:
        return replace(self, model=self.model.without_inner_masks())

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex of the model's own fingerprint, the rules' names and what they do.

        That is their code and the numbers, names and tuples of those that it reads from around it.
        """
        digest = hashlib.sha256(self.model.fingerprint.encode())
        for rule in self.rules:
            digest.update(f"{rule.name} {rule.pattern} {_code(rule.change)}".encode())
        return digest.hexdigest()

    def ruled_step(self, step: Graph) -> Graph:
        """Return the traced float32 step as rules of the stage "step" leave it."""
        holding = [rule for rule in self.rules if rule.stage == "step"]
        return apply_rules(step, holding, self.layer_types)[0]

    def parameters(self) -> tuple[ParameterSpec, ...]:
        return self.model.parameters()

    def statistics(self) -> tuple[ParameterSpec, ...]:
        return self.model.statistics()

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        return self.model.init(rng)

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the forward pass as the rules leave it."""
        part = Builder()
        inner = {name: part.copy(b.nodes[i], ()) for name, i in fed.items()}
        traced = self.model.trace(part, inner, training)
        outputs = {OUTPUT: traced.output, **{NEXT + name: i for name, i in traced.statistics}}
        if traced.loss is not None:
            outputs[LOSS] = traced.loss
        stages = ("forward",) if training else ("forward", "evaluation")
        holding = [rule for rule in self.rules if rule.stage in stages]
        graph, _ = apply_rules(part.graph(outputs), holding, self.layer_types)
        new = _graph_copy(b, graph, fed)
        at = {name: new[i] for name, i in graph.outputs}
        statistics = tuple((name, at[NEXT + name]) for name, _ in traced.statistics)
        return Traced(at[OUTPUT], at.get(LOSS), statistics)


def _code(change: Callable[..., None]) -> str:
    function = inspect.unwrap(change)
    around = inspect.getclosurevars(function)
    read = {**around.globals, **around.nonlocals}
    plain = sorted((name, value) for name, value in read.items() if _is_plain(value))
    return f"{inspect.getsource(function)} {plain}"


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | float | str | NoneType)


def _graph_copy(b: Builder, graph: Graph, fed: Mapping[str, int]) -> dict[int, int]:
    """Copy the graph behind what `b` holds, its sources `fed` by name; return the new ids."""
    sources = {b.nodes[i].name: i for i in fed.values()}
    new: dict[int, int] = {}
    for node in graph.nodes:
        known = node.op.kind == "source" and node.name in sources
        new[node.id] = sources[node.name] if known else b.copy(node, [new[i] for i in node.inputs])
    return new
