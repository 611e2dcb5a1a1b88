"""Mutations that cosmic-ray lacks: arguments and statements dropped, words, confused names."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator, operator_names
from parso.python.tree import Keyword, Name, String

Position = tuple[tuple[int, int], tuple[int, int]]
Node = Any  # parso has no types

# Neighbours that a slip confuses; each becomes the next of its row.
CONFUSED = (
    ("compute", "grad", "dgrad", "wgrad", "output", "param"),
    ("growth_factor", "backoff_factor"),
    ("min_scale", "max_scale"),
    ("step_index", "updates_done"),
    ("overflows", "underflows"),
    ("speedup", "memory_ratio"),
    ("train", "validation"),
)
NEXT = {row[i - 1]: row[i] for row in CONFUSED for i in range(len(row))}

# Functions that run with an argument less, so that only a test can tell.
ANY_NUMBER = ("max", "min", "hypot", "get", "setdefault", "getattr", "range")

# They need arguments that only a person can choose.
_LEFT_OUT = ("VariableReplacer", "VariableInserter")


class DropArgument(Operator):
    """Leave one argument of a call out: a named one, or one of a function that takes any number."""

    def mutation_positions(self, node: Node) -> Iterator[Position]:
        """Yield the place of each argument that may go."""
        for at in _optional_arguments(node):
            yield node.children[at].start_pos, node.children[at].end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Return the arguments without that of position `index`."""
        made = copy.copy(node)
        at = _optional_arguments(node)[index]
        first = at if at + 1 < len(node.children) else at - 1
        made.children = node.children[:first] + node.children[first + 2 :]
        return made

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return what it does, in the form of cosmic-ray."""
        return (Example("f(a, b=c)", "f(a)"), Example("max(a, b)", "max( b)"))


class DropStatement(Operator):
    """Put `pass` for a call, an augmented assignment, or one to an attribute or an item."""

    def mutation_positions(self, node: Node) -> Iterator[Position]:
        """Yield the place of the statement."""
        if node.parent is None or node.parent.type != "simple_stmt":
            return
        if node.type == "expr_stmt":
            target = node.children[0]
            augmented = node.children[1].type == "operator" and node.children[1].value != "="
            if augmented or target.type in ("atom_expr", "power"):
                yield node.start_pos, node.end_pos
        elif node.type in ("atom_expr", "power"):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Return `pass`."""
        return Keyword("pass", node.start_pos, prefix=node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return what it does, in the form of cosmic-ray."""
        return (Example("a.b += 1\n", "pass\n"), Example("f()\n", "pass\n"))


class ReplaceWord(Operator):
    """Change a string that is one word: a key or a name, not a message."""

    def mutation_positions(self, node: Node) -> Iterator[Position]:
        """Yield the place of the string."""
        if isinstance(node, String) and re.fullmatch(r"([\"'])[\w.]+\1", node.value):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Return the word with an underscore before it."""
        return String(f'"_{node.value[1:-1]}"', node.start_pos, prefix=node.prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return what it does, in the form of cosmic-ray."""
        return (Example('a = "b"', 'a = "_b"'),)


class ConfuseName(Operator):
    """Read or name a neighbour instead, as `wgrad` for `dgrad`."""

    def mutation_positions(self, node: Node) -> Iterator[Position]:
        """Yield the place of an attribute or of a keyword of a call."""
        if isinstance(node, Name) and node.value in NEXT and node.parent.type != "dotted_name":
            before = node.get_previous_leaf()
            keyword = node.parent.type == "argument" and node.parent.children[0] is node
            if keyword or (before is not None and before.value == "."):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Node, index: int) -> Node:
        """Return the neighbour's name."""
        return Name(NEXT[node.value], node.start_pos, prefix=node.prefix)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """Return what it does, in the form of cosmic-ray."""
        return (Example("a.dgrad", "a.wgrad"), Example("f(dgrad=a)", "f(wgrad=a)"))


OWN = (DropArgument, DropStatement, ReplaceWord, ConfuseName)


def operators() -> dict[str, Operator]:
    """Return every operator by name: cosmic-ray's and those of this file."""
    found = {name.partition("/")[2]: name for name in operator_names()}
    theirs = {short: get_operator(name) for short, name in found.items() if short not in _LEFT_OUT}
    own = {operator.__name__: operator for operator in OWN}
    return {name: operator() for name, operator in {**theirs, **own}.items()}


def _optional_arguments(node: Node) -> list[int]:
    """Return which children are arguments without which the call may still run."""
    inside = node.parent is not None and node.parent.type == "trailer"
    if not inside or node.type != "arglist" or node.parent.children[0].value != "(":
        return []
    function = node.parent.get_previous_sibling().get_code().strip().strip(".")
    return [
        at
        for at, child in enumerate(node.children)
        if child.type == "argument" or (function in ANY_NUMBER and child.type != "operator")
    ]
