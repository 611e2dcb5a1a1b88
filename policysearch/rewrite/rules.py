"""Rules: a pattern, and what becomes of each place where it is found."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from policysearch.graph import Graph, Node
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.matching import NO_TYPES, Match, disjoint, matches
from policysearch.rewrite.patterns import Pattern
from policysearch.values import InputError

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

    def made(function: Callable[[Editor, Match], None]) -> Rule:
        @functools.wraps(function)  # so that its source can be had
        def change(edit: Editor, found: Sequence[Match]) -> None:
            for match in found:
                edit.begin()
                try:
                    function(edit, match)
                except InputError:
                    raise
                except Exception as error:  # Whatever the user's own code does is said in a line.
                    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
                    raise edit.refuse(match.nodes[-1], f"{said}; expected it to run") from error

        return Rule(name or function.__name__, pattern, change, stage, optional, overlapping)

    return made


def apply_rule(graph: Graph, rule: Rule, layer_types: Mapping[str, str] = NO_TYPES) -> Pass:
    """Apply one rule wherever its pattern is found.

    Raises InputError, naming the rule, where it matches nothing and is not optional, and naming
    the node too where what it makes does not fit.
    """
    found = matches(graph, rule.pattern, layer_types)
    found = found if rule.overlapping else disjoint(found)
    if not found and not rule.optional:
        raise InputError(f"rule {rule.name!r}: matches no node; expected a match, or optional")
    edit = Editor(graph, rule.name)
    rule.change(edit, found)
    after = edit.finished() if found else graph
    return Pass(rule.name, len(found), graph, after, tuple(edit.copies))


def apply_rules(
    graph: Graph, rules: Iterable[Rule], layer_types: Mapping[str, str] = NO_TYPES
) -> tuple[Graph, tuple[Pass, ...]]:
    """Apply rules in order, each to what the one before it left; return the graph and the passes.

    Raises InputError as `apply_rule`.
    """
    passes: list[Pass] = []
    for each in rules:
        passes.append(apply_rule(graph, each, layer_types))
        graph = passes[-1].after
    return graph, tuple(passes)


def node_lines(graph: Graph) -> list[str]:
    """Return one line per node that says all but its number: what it does, on what, as what."""
    said = [_said(node) for node in graph.nodes]
    return [
        f"{said[node.id]} {node.format} <- {'; '.join(said[i] for i in node.inputs) or '-'}"
        for node in graph.nodes
    ]


def _said(node: Node) -> str:
    return f"{node.role} {node.layer or '-'} {node.op.name} {node.name}".rstrip()


def _casts(graph: Graph) -> int:
    return sum(node.op.converts for node in graph.nodes)
