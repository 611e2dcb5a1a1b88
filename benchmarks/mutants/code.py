"""The mutants of a module, each with a key that stays valid when lines move."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from benchmarks.mutants.operators import Position, operators

Key = tuple[str, str, str, str]
"""Module, scope in it, the lines before and the lines after, stripped of what surrounds them."""

OPS = "policysearch/ops/"
TYPES = ("Callable", "Literal", "dict", "list", "tuple")


@dataclass(frozen=True)
class Place:
    """A place that operators can change: `changes` holds (operator name, its occurrence)."""

    module: str
    scope: str
    lines: tuple[int, ...]
    words: str
    changes: tuple[tuple[str, int], ...]

    def rank(self, seed: int) -> str:
        """Return where this place comes in the draw with `seed`, whatever else there is."""
        return _hash(seed, self.module, self.scope, self.words)


@dataclass(frozen=True)
class Mutant:
    """One changed module."""

    place: Place
    operator: str
    before: str
    after: str

    @cached_property
    def diff(self) -> str:
        """The change as a unified diff."""
        sides = self.before.splitlines(), self.after.splitlines()
        name = self.place.module
        return "\n".join(difflib.unified_diff(*sides, name, name, lineterm="", n=2))

    @cached_property
    def key(self) -> Key:
        """What this mutant is known by in the list of equivalent ones."""
        lines = self.diff.splitlines()[2:]
        old = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
        new = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
        return self.place.module, self.place.scope, old, new


def drawn(root: Path, modules: Sequence[str], seed: int, sample: int) -> list[Mutant]:
    """Return `sample` mutants of the modules under `root`, one per place, in the order drawn.

    A place comes by the hash of its own text, so that a change elsewhere leaves the others in the
    sample. Operators that can change a place in many ways count once.
    """
    texts = {module: (root / module).read_text(encoding="utf-8") for module in modules}
    places = [place for module, text in texts.items() for place in places_of(module, text)]
    known = operators()
    found: list[Mutant] = []
    for place in sorted(places, key=lambda place: place.rank(seed)):
        if len(found) == sample:
            break
        ranked = sorted(place.changes, key=lambda change: _hash(seed, place.words, *change))
        for operator, occurrence in ranked:
            before = texts[place.module]
            after = mutate_code(before, known[operator], occurrence)
            if after is not None and _differs(before, after):
                found.append(Mutant(place, operator, before, after))
                break
    return found


def places_of(module: str, text: str) -> list[Place]:
    """Return the places of the module in their order; annotations and docstrings are none.

    Nor is the inside of what makes an op's `Example`; see `examples_of`.
    """
    tree = ast.parse(text)
    left_out = [*_inert(tree), *examples_of(module, tree)]
    scopes, lines = list(_scopes(tree)), text.splitlines()
    places: dict[tuple[str, str], Place] = {}
    for (start, end), ways in sorted(_changes(text).items()):
        if any(low <= start and end <= high for low, high in left_out):
            continue
        touched = tuple(range(start[0], end[0] + 1))
        scope = ".".join(name for name, low, high in scopes if low <= start[0] <= high)
        row = lines[start[0] - 1]
        column = start[1] - (len(row) - len(row.lstrip()))
        words = f"{row.strip()} @{column}+{end[0] - start[0]}:{end[1] - start[1]}"
        # The same words twice in one scope are one place.
        places.setdefault((scope, words), Place(module, scope, touched, words, tuple(ways)))
    return list(places.values())


def examples_of(module: str, tree: ast.Module) -> Iterator[Position]:
    """Yield where functions and lambdas of `ops/` that take `rng` lie.

    An op draws nothing, so these make the inputs of its `Example`. They are what tests are given,
    not what they judge: with other numbers of the kind every test still says the same. An
    `example=` itself, its attributes outside such a function, and all of other rooms stay places.
    """
    if not module.startswith(OPS):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            first = node.args.args[0].arg if node.args.args else ""
            if first == "rng" and node.end_lineno is not None and node.end_col_offset is not None:
                yield (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _changes(text: str) -> dict[Position, list[tuple[str, int]]]:
    """Return what can be done where: operators by name, with the occurrence of each."""
    nodes = list(ast_nodes(get_ast(text)))
    leaves = [node for node in nodes if node.type in ("operator", "keyword")]
    comparisons = [node for node in nodes if node.type == "comparison"]
    changes: dict[Position, list[tuple[str, int]]] = {}
    for name, operator in operators().items():
        # Over a hundred operators look at nothing else; the result is that for all nodes.
        seen = leaves if "BinaryOperator" in name else nodes
        seen = comparisons if "Comparison" in name else seen
        found = (position for node in seen for position in operator.mutation_positions(node))
        for occurrence, position in enumerate(found):
            changes.setdefault(position, []).append((name, occurrence))
    return changes


def _differs(before: str, after: str) -> bool:
    try:
        return ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    except SyntaxError:
        return False


def _inert(tree: ast.Module) -> Iterator[Position]:
    """Yield what nothing runs: annotations, aliases of types, docstrings, type checkers' code."""
    for node in ast.walk(tree):
        found: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.returns)
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            found.append(node.annotation)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.append(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found.append(node)
        if isinstance(node, ast.Assign) and _is_type(node.value):
            found.append(node)
        for part in found:
            if part is not None and part.end_lineno is not None and part.end_col_offset is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def _is_type(value: ast.expr) -> bool:
    """Whether this is a type, as in `Outcome = Measurement | Failure` or `Rule = Callable[...]`."""
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.BitOr) and isinstance(value.left, (ast.Name, ast.Subscript))
    head = value.value if isinstance(value, ast.Subscript) else None
    return isinstance(head, ast.Name) and head.id in TYPES


def _scopes(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first line, last line) of functions and classes, outer ones first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno, node.end_lineno or node.lineno
        yield from _scopes(node)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
