"""Patterns over a step's graph: what nodes must be, and how they hang together.

A pattern names some nodes and the edges between them. `matches` finds every place of a graph that
fits; for chains its work is linear in nodes and edges (and in what it finds).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, get_args

from policysearch.graph import Node, Role
from policysearch.values import InputError, one_of, shown

KINDS = ("gemm", "elementwise", "reduce", "move", "source")
ROLES: tuple[str, ...] = get_args(Role)
Names = str | Collection[str]


@dataclass(frozen=True)
class Wanted:
    """What one node must be; a field that is left out takes any. Made by `node`.

    `ops`, `kinds`, `layer_types`, `roles` and `formats` list what it may be. `layer` is a regular
    expression that the whole name of its layer fits. `attrs` are attributes it has, with their
    values. `single_user`: one node reads it, and no output or state takes it. `name` is what the
    node is called in a match, its place in the pattern where that is empty. `sources` are the
    forward ops it belongs to (a gradient node to the op it differentiates), of which the op lists
    of a policy speak.
    """

    name: str = ""
    ops: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    layer_types: tuple[str, ...] = ()
    layer: str = ""
    roles: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    attrs: tuple[tuple[str, Any], ...] = ()
    single_user: bool = False
    sources: tuple[str, ...] = ()

    def __repr__(self) -> str:
        # results are stored under what is written here: a later field is left out where it is empty
        written = [f for f in fields(self) if f.name != "sources" or self.sources]
        return f"Wanted({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in written)})"

    def __post_init__(self) -> None:
        for kind in self.kinds:
            one_of("kind", kind, KINDS)
        for role in self.roles:
            one_of("role", role, ROLES)
        try:
            re.compile(self.layer)
        except re.error as error:
            raise InputError(
                f"layer: {shown(self.layer)}: {error}; expected a regular expression"
            ) from None

    def fits_kind(self, node: Node) -> bool:
        """Return whether op, kind, role and source fit; equal for nodes of one `kind_of`."""
        return (
            (not self.ops or node.op.name in self.ops)
            and (not self.kinds or node.op.kind in self.kinds)
            and (not self.roles or node.role in self.roles)
            and (not self.sources or node.source in self.sources)
        )

    def fits_place(self, node: Node, layer_type: str, only_read_once: bool) -> bool:
        """Return whether all else fits a node of a layer of this type."""
        return (
            (not self.formats or node.format in self.formats)
            and (not self.layer_types or layer_type in self.layer_types)
            and (not self.layer or re.fullmatch(self.layer, node.layer) is not None)
            and (not self.single_user or only_read_once)
            and all(node.attributes.get(key) == value for key, value in self.attrs)
        )

    @cached_property
    def fits_anywhere(self) -> bool:
        """Whether `fits_kind` decides: format, layer, attributes and readers may be any."""
        return not (
            self.formats or self.layer_types or self.layer or self.single_user or self.attrs
        )


def kind_of(node: Node) -> tuple[str, str, str, str]:
    """Return what `Wanted.fits_kind` looks at."""
    return node.op.name, node.op.kind, node.role, node.source


def node(
    name: str = "",
    *,
    op: Names = (),
    kind: Names = (),
    layer_type: Names = (),
    layer: str = "",
    role: Names = (),
    format: Names = (),
    attrs: dict[str, Any] | None = None,
    single_user: bool = False,
    source: Names = (),
) -> Wanted:
    """Return what a node must be; op, kind, layer type, role, format and source one name or more.

    Fields as in `Wanted`. Raises InputError for an unknown kind or role, or a bad expression.
    """
    return Wanted(
        name,
        _several(op),
        _several(kind),
        _several(layer_type),
        layer,
        _several(role),
        _several(format),
        tuple((attrs or {}).items()),
        single_user,
        _several(source),
    )


def _several(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True)
class Edge:
    """`target` reads `source`, by their names: as input number `input`, or as any of them.

    With `anything_between`, through any nodes between them, or none.
    """

    source: str
    target: str
    input: int | None = None
    anything_between: bool = False


@dataclass(frozen=True)
class Anything:
    """Stands between two nodes of a `chain` for any nodes, or none."""


ANYTHING = Anything()


@dataclass(frozen=True)
class Pattern:
    """Nodes and the edges between them; nodes from the second on have an edge with one before.

    Each node of the pattern is another node of the graph. In the `same_block`, their layers have
    one `block_of`. Raises InputError where a name is there twice or an edge hangs in the air.
    """

    nodes: tuple[Wanted, ...]
    edges: tuple[Edge, ...] = ()
    same_block: bool = False

    def __post_init__(self) -> None:
        names = self.names
        if not names or len(set(names)) < len(names):
            raise InputError(f"pattern: nodes {list(names)}; expected one or more different names")
        for edge in self.edges:
            one_of("pattern: edge", edge.source, names)
            one_of("pattern: edge", edge.target, names)
        for place, name in enumerate(names[1:], 1):
            if not self.ties[place]:
                valid = f"an edge with one of {', '.join(names[:place])}"
                raise InputError(f"pattern: node {name!r} hangs alone; expected {valid}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the nodes are called in a match."""
        return _names(self.nodes)

    @cached_property
    def ties(self) -> tuple[tuple[Edge, ...], ...]:
        """Per node, its edges with nodes before it in the pattern."""
        place = {name: i for i, name in enumerate(self.names)}
        ends = [(edge, place[edge.source], place[edge.target]) for edge in self.edges]
        return tuple(
            tuple(e for e, a, b in ends if max(a, b) == i and a != b)
            for i in range(len(self.nodes))
        )

    @cached_property
    def is_chain(self) -> bool:
        """Whether every node reads the one before it, and there is no further edge."""
        return [(e.source, e.target) for e in self.edges] == list(pairwise(self.names))


def chain(*steps: Wanted | Anything, same_block: bool = False) -> Pattern:
    """Return the pattern of nodes each of which reads the one before it, as any of its inputs."""
    nodes = tuple(step for step in steps if isinstance(step, Wanted))
    if isinstance(steps[0], Anything) or isinstance(steps[-1], Anything):
        raise InputError("pattern: a chain that begins or ends with anything; expected nodes there")
    names = _names(nodes)
    loose = [isinstance(before, Anything) for before, step in pairwise(steps) if step != ANYTHING]
    edges = (Edge(*pair, None, gap) for pair, gap in zip(pairwise(names), loose, strict=True))
    return Pattern(nodes, tuple(edges), same_block)


def fan_out(source: Wanted, *readers: Wanted, same_block: bool = False) -> Pattern:
    """Return the pattern of one node and different nodes that all read it."""
    nodes = (source, *readers)
    names = _names(nodes)
    edges = tuple(Edge(names[0], name) for name in names[1:])
    return Pattern(nodes, edges, same_block)


def _names(nodes: Sequence[Wanted]) -> tuple[str, ...]:
    return tuple(wanted.name or str(place) for place, wanted in enumerate(nodes))


def block_of(layer: str) -> str:
    """Return the name of the block a layer is in, "" where it is in none.

    That is the layer's name up to its first part that is a number ("layer1.0.conv1": "layer1.0")
    or, where there is none, that ends in one ("block2.attention.q": "block2"). The last part
    names the layer itself.
    """
    parts = layer.split(".")[:-1]
    for test in (str.isdigit, lambda part: part[-1:].isdigit()):
        for place, part in enumerate(parts):
            if test(part):
                return ".".join(parts[: place + 1])
    return ""
