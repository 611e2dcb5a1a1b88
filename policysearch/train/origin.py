"""Where the first value that is not finite came from: the node, and what led to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from policysearch.emulator.compile import Step, compile_graph
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node, Role
from policysearch.rounding.rounder import Fast, is_on_torch
from policysearch.train.lost_values import Tally, listed_op, overflowed

LONGEST_CHAIN = 8

Where = Literal["loss", "gradients", "update"]
"""What was found not finite: the loss, gradients where they are checked, or a new parameter."""


@dataclass(frozen=True)
class Link:
    """A value on the way: which op of which layer made it, and how large it was.

    `largest_in` and `largest_out` are the largest finite absolute values that the op read and gave,
    before rounding; `lost` of its values are not finite. `limit` is the largest of its format, and
    `line` the place in the user's file, where it is known.
    """

    op: str
    layer: str
    role: Role
    format: str
    limit: float
    largest_in: float
    largest_out: float
    lost: int
    of: int
    line: str = ""


@dataclass(frozen=True)
class Origin:
    """The first value of a training that was not finite while all that it was computed from was.

    `kind`: it became so where it was rounded ("overflow"), or was computed so ("born").
    `found` is where the training showed it, in `step`; an update that was `skipped` did no harm.
    `chain` holds at most LONGEST_CHAIN links, the value's own last.
    """

    kind: Literal["overflow", "born"]
    step: int
    found: Where
    skipped: bool
    chain: tuple[Link, ...]

    @property
    def link(self) -> Link:
        """The value itself."""
        return self.chain[-1]

    @property
    def words(self) -> str:
        """Say what became not finite, where, in which step, and by how much."""
        link = self.link
        place = f"{link.op} of {link.layer or 'no layer'} ({link.role}, step {self.step})"
        line = f" ({link.line})" if link.line else ""
        if self.kind == "born":
            gave = f"NaN or infinity of finite values up to {link.largest_in:.3g}"
        else:
            limit = f"{link.format}'s largest is {link.limit:.5g}"
            gave = f"{link.largest_out:.3g} where {limit}"
        return f"{place} gave {gave}{line}"


def first_harm(origins: Iterable[Origin]) -> Origin | None:
    """Return the origin of the first value not finite that no skipped step kept out; None if none.

    Where every such step was skipped, the first of them.
    """
    rows = sorted(origins, key=lambda origin: (origin.skipped, origin.step))
    return rows[0] if rows else None


@dataclass(frozen=True)
class Seen:
    """What rounding did to the values of one node: how many were too large, and the largest."""

    over: int = 0
    largest: float = 0.0

    def plus(self, over: int, largest: float) -> Seen:
        """Return it with more values, so many of them too large."""
        return Seen(self.over + over, max(self.largest, largest))


@dataclass(frozen=True, eq=False)
class Traced:
    """A step of which every value is kept: `values` by node, and what rounding did (`seen`)."""

    graph: Graph
    values: Mapping[int, FloatArray]
    seen: Mapping[int, Seen]

    def link(self, node: Node) -> Link:
        """Return a node and how large its values are."""
        value = self.values[node.id]
        rounded = self.seen.get(node.id, Seen())
        read = (largest_of(self.values[i]) for i in node.inputs)
        return Link(
            listed_op(node),
            node.layer,
            node.role,
            node.format,
            format_named(node.format).max,
            max(read, default=0.0),
            max(largest_of(value), rounded.largest),
            int(np.count_nonzero(~np.isfinite(value))),
            value.size,
            node.line,
        )


def largest_of(values: FloatArray) -> float:
    """Return the largest finite absolute value, 0 where there is none."""
    finite = values[np.isfinite(values)]
    return float(np.max(np.abs(finite), initial=0.0))


class Tracer:
    """A step compiled so that every value of it can be looked at; `sources` are its arrays."""

    def __init__(
        self, graph: Graph, seed: int, sources: Mapping[str, FloatArray], fast: Fast = "off"
    ) -> None:
        self._seen: dict[int, Seen] = {}
        named = tuple((f"node {node.id}", node.id) for node in graph.nodes)
        kept = replace(graph, outputs=(*graph.outputs, *named))
        # by the reference: it has every value anyway, and no second arena beside the training's
        way = fast if is_on_torch(fast) else "off"
        self.step: Step = compile_graph(
            kept, seed=seed, fast=way, sources=sources, observer=self._see
        )

    def _see(self, node: Node, before: FloatArray, after: FloatArray) -> None:
        size = np.abs(before)
        over = int(np.count_nonzero(overflowed(node, size, after)))
        self._seen[node.id] = self._seen.get(node.id, Seen()).plus(over, largest_of(size))

    def clear(self) -> None:
        """Forget what rounding did in the last run."""
        self._seen.clear()

    def traced(self) -> Traced:
        """Return the values of the last run, valid until the next."""
        graph = self.step.graph
        arrays = self.step.arrays
        values = {
            node.id: arrays[node.name]
            if node.op.kind == "source"
            else self.step.value(f"node {node.id}")
            for node in graph.nodes
        }
        return Traced(graph, values, dict(self._seen))


class Origins:
    """The origins that a training has shown, one for each place where one is found."""

    def __init__(self, rows: tuple[Origin, ...] = (), tally: Tally | None = None) -> None:
        self.rows, self.tally = rows, Tally() if tally is None else tally

    def lacks(self, found: Where, skipped: bool) -> bool:
        """Return whether none is known that was found there, and did harm if this does."""
        return not any(row.found == found and (skipped or not row.skipped) for row in self.rows)

    def add(self, traced: Traced, step: int, found: Where, skipped: bool) -> bool:
        """Note where the values of `traced` that are not finite come from; False if all are."""
        born = births(traced, found)
        if not born:
            return False
        first, over = born[0], _rounded_over(traced, born[0])
        for node in born:
            if not _rounded_over(traced, node):
                value = traced.values[node.id]
                count = int(np.count_nonzero(~np.isfinite(value)))
                place = node.layer, node.role, step
                sizes = np.zeros(count, np.float32)
                self.tally.add("born", *place, sizes, value.size, listed_op(node))
        chain = tuple(traced.link(node) for node in chain_to(traced, first))
        kind: Literal["overflow", "born"] = "overflow" if over else "born"
        self.rows += (Origin(kind, step, found, skipped, chain),)
        return True


def _rounded_over(traced: Traced, node: Node) -> bool:
    return traced.seen.get(node.id, Seen()).over > 0


def births(traced: Traced, found: Where) -> list[Node]:
    """Return the nodes whose values are not finite though all that they read is, first ones first.

    Only those that what was `found` depends on: masks of -inf are no failure. Where no such node
    is, the first that is NaN of values that are not.
    """
    graph = traced.graph
    ends = [i for i in _ends(graph, found) if not np.isfinite(traced.values[i]).all()]
    bad, waiting = set(ends), list(ends)
    while waiting:
        for i in graph.nodes[waiting.pop()].inputs:
            if i not in bad and not np.isfinite(traced.values[i]).all():
                bad.add(i)
                waiting.append(i)
    computed = [graph.nodes[i] for i in sorted(bad) if graph.nodes[i].op.kind != "source"]
    born = [node for node in computed if not bad.intersection(node.inputs)]
    if born:
        return born

    def is_nan(i: int) -> bool:
        return bool(np.isnan(traced.values[i]).any())

    return [n for n in computed if is_nan(n.id) and not any(map(is_nan, n.inputs))][:1]


def _ends(graph: Graph, found: Where) -> Iterator[int]:
    outputs = dict(graph.outputs)
    if found == "loss":
        yield outputs["loss"]
    elif found == "gradients":
        yield from (i for name, i in outputs.items() if name.startswith("grad:"))
    else:
        yield from (new for _, new in graph.updates)


def chain_to(traced: Traced, node: Node) -> tuple[Node, ...]:
    """Return what led to a node, at most LONGEST_CHAIN nodes of the same pass, itself last.

    Of what a node reads the largest is followed. Where NaN or infinity came of finite values it is
    what was smallest there, the divisor of 0 / 0, and then the smallest.
    """
    born = not _rounded_over(traced, node)
    chain = [node]
    while len(chain) < LONGEST_CHAIN:
        read = [n for n in traced.graph.inputs_of(chain[-1]) if n.op.kind != "source"]
        if not read:
            break
        key: Callable[[Node], float] = lambda n: largest_of(traced.values[n.id])  # noqa: E731
        if born and len(chain) == 1:
            read, key = read[::-1], lambda n: _largest_where_lost(traced, node, n)
        chain.append(min(read, key=key) if born else max(read, key=key))
    return tuple(reversed(chain))


def _largest_where_lost(traced: Traced, node: Node, read: Node) -> float:
    """Return the largest of what was read for the values of a node that are not finite."""
    lost, values = ~np.isfinite(traced.values[node.id]), traced.values[read.id]
    return largest_of(values[lost] if values.shape == lost.shape else values)


def is_all_finite(arrays: Iterable[FloatArray]) -> bool:
    """Return whether every element is finite: sums of squares first, which cost one pass."""
    flats = [array.ravel(order="K") for array in arrays]
    with np.errstate(over="ignore"):
        if math.isfinite(sum(np.dot(flat, flat) for flat in flats)):
            return True
    return all(bool(np.isfinite(flat).all()) for flat in flats)
