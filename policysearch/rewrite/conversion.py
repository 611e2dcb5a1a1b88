"""One sweep that rebuilds a graph: at every node, the first rule that fits says what it becomes.

Rules that change a graph in places are in `rules`. Where every node changes, as under a policy, it
is built anew instead, once and in order. Both are written in the same patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policysearch.graph import Graph, Node
from policysearch.rewrite.matching import NO_TYPES, Search, Surroundings
from policysearch.rewrite.patterns import Pattern, Wanted, kind_of
from policysearch.values import InputError

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
    asked = _Asked(graph, rules, layer_types)
    counts = dict.fromkeys((rule.name for rule in rules), 0)
    for node in graph.nodes:
        for rule, nodes in asked.at(node):
            made = rule.becomes(state, *nodes)
            if made is not None:
                new[node.id] = made
                counts[rule.name] += 1
                break
        else:
            where = f"node [{node.id}] {node.op.name} of layer {node.layer!r}"
            valid = ", ".join(rule.name for rule in rules)
            raise InputError(f"{where}: no rule takes it; expected one of {valid} to")
    return tuple(counts.items())


class _Asked:
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
                found = next(search.at(node), None)
                if found is not None:
                    yield rule, found.nodes


def _is_kind_alone(pattern: Pattern) -> bool:
    return len(pattern.nodes) == 1 and pattern.nodes[0].fits_anywhere
