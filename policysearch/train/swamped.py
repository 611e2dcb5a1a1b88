"""Updates that vanish: too small to move the parameter that they are added to, as it is stored."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from policysearch.emulator.compile import Step
from policysearch.formats import Format, Rounding, format_named
from policysearch.graph import FloatArray, Graph, Node, size
from policysearch.ops.source import is_rate, state
from policysearch.rewrite.kept_state import LOST, REMAINDER
from policysearch.train.lost_values import Kind, LostValues, Tally

UPDATE = "update of "
"""Before a parameter's name: the source that holds its last update."""

EXACT = "exact "
"""Before the name of a state kept below float32: the source of its last value, unrounded."""

DECAYS = ("adam_step", "adam_shrunk", "lion_step", "own_rate_step")
"""Ops that shrink a parameter by the learning rate times `weight_decay`, apart from gradients."""

SPAN = 1 << 15
"""Elements that are looked at together."""

LOWEST_EXPONENT, HIGHEST_EXPONENT = -200, 128
"""Beyond the exponents of every float32 number; zero counts as having the lowest."""

EXPONENT = 0x7F800000
"""The bits of a float32's exponent: alone, they are the power of two at or below the number."""


@dataclass(frozen=True)
class Swamped:
    """The share of parameters' elements whose update is swamped, over one training.

    An update is swamped where it is not zero, but below half a unit in the last place of its
    parameter as stored: to nearest, that rounds back to where it was. `shares` holds
    (step, share) pairs as measured. `projected` is the last of them if the learning rate were the
    smallest of the schedule; `layer` has the largest such share, `layer_share`.
    """

    shares: tuple[tuple[int, float], ...] = ()
    projected: float = 0.0
    layer: str = ""
    layer_share: float = 0.0


NOT_COUNTED = Swamped()
"""What is known without a step that was looked at."""


def with_update_sources(graph: Graph) -> Graph:
    """Return the step with, for each parameter, its update in the source UPDATE + its name.

    That is the node of the new parameter once more, in float32, from zeros in the parameter's
    place; the decay of AdamW, which is a share of the parameter, is no part of it. States below
    float32 have their new values in EXACT + their name. All other nodes keep their place, and with
    it their bits.
    """
    nodes, updates = list(graph.nodes), list(graph.updates)
    for old, new in graph.updates:
        parameter, new_value = graph.nodes[old], graph.nodes[new]
        if _is_low_state(parameter):
            at = len(nodes)
            nodes.append(replace(parameter, id=at, name=EXACT + parameter.name, format="float32"))
            nodes.append(replace(_unrounded_node(graph, new_value), id=at + 1))
            updates.append((at, at + 1))
        if parameter.op.name != "parameter":
            continue
        shape = ("shape", parameter.shape)
        at, name = len(nodes), UPDATE + parameter.name
        nodes.append(
            replace(parameter, id=at, op=state, name=name, format="float32", attrs=(shape,))
        )
        # p' = p + u with p = 0 is the update u itself, whatever rule computes it
        exact = replace(new_value, format="float32", rounding=Rounding())
        nodes.append(replace(exact, id=at + 1, inputs=(at, *new_value.inputs[1:])))
        updates.append((at, at + 1))
    return replace(graph, nodes=tuple(nodes), updates=tuple(updates))


def _is_low_state(source: Node) -> bool:
    return source.op.name == "state" and source.format != "float32"


def _unrounded_node(graph: Graph, new_value: Node) -> Node:
    """Return the node of a new value as it is before it is rounded to where it is kept."""
    computed = graph.nodes[new_value.inputs[0]] if new_value.op.name == "cast" else new_value
    return replace(computed, format="float32", rounding=Rounding())


def decay_of(graph: Graph, new: Node) -> tuple[Node, Node] | None:
    """Return the node that applies a decoupled decay to a parameter, and its rate; None if none."""
    for node in (new, *graph.inputs_of(new)):
        if node.op.name in DECAYS and node.attributes.get("weight_decay"):
            rates = [i for i in graph.inputs_of(node) if i.shape == () and is_rate(i)]
            return (node, rates[0]) if rates else None
    return None


@dataclass(frozen=True)
class SwampedCounts:
    """What a `SwampedCounter` holds: (step, share), by layer of its last step, and all by role."""

    shares: tuple[tuple[int, float], ...] = ()
    projected: tuple[tuple[str, int], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    tally: tuple[LostValues, ...] = ()


class SwampedCounter:
    """Counts swamped updates in the steps it is told of: `before` the update and `after` it.

    It goes on from the `counts` of another.
    """

    def __init__(self, counts: SwampedCounts = SwampedCounts()) -> None:
        self._shares = list(counts.shares)
        self._projected = dict(counts.projected)
        self._sizes = Counter(dict(counts.sizes))
        self._tally = Tally(counts.tally)
        self._before: dict[str, FloatArray] = {}

    @property
    def counts(self) -> SwampedCounts:
        """What was counted so far."""
        sizes, projected = tuple(self._sizes.items()), tuple(self._projected.items())
        return SwampedCounts(tuple(self._shares), projected, sizes, self._tally.rows)

    def before(self, step: Step) -> None:
        """Remember the parameters of a step `with_update_sources`, and forget its last updates."""
        self._before = {}
        for node, _ in _parameters_with_rounding(step.graph):
            self._before[node.name] = step.arrays[node.name].copy(order="K")
            step.arrays[UPDATE + node.name][...] = 0.0
        for node, _ in _low_states(step.graph):
            self._before[node.name] = step.arrays[node.name].copy(order="K")

    def after(self, step: Step, index: int, factor: float) -> None:
        """Count the updates of step `index`, and those `factor` times as large."""
        swamped = 0
        projected: Counter[str] = Counter()
        self._sizes = Counter()
        for node, rounding in _parameters_with_rounding(step.graph):
            self._sizes[node.layer] += size(node.shape)
            projected[node.layer] += 0
            kept = any(node.name + suffix in step.arrays for suffix in (LOST, REMAINDER))
            if kept or rounding.mode == "stochastic":
                continue  # a small update is not lost, or moves as far as it should on average
            fmt, update = format_named(node.format), step.arrays[UPDATE + node.name]
            small, later = _swamped_sizes(update, self._before[node.name], fmt, factor)
            swamped += self._add("swamped", node, index, small)
            self._add_decay(step, node, index)
            projected[node.layer] += later
        for node, rounding in _low_states(step.graph):
            if rounding.mode != "stochastic":
                self._add_state(step, node, index)
        self._shares.append((index, swamped / self._sizes.total()))
        self._projected = dict(projected)

    def _add(self, kind: Kind, node: Node, index: int, small: FloatArray) -> int:
        of = size(node.shape)
        return self._tally.add(kind, node.layer, "update", index, np.ravel(small), of)

    def _add_state(self, step: Step, node: Node, index: int) -> None:
        """Count changes of a state too small to move it as it is kept."""
        before = self._before[node.name]
        change = np.abs(step.arrays[EXACT + node.name] - before)
        half = half_unit(before, format_named(node.format))
        self._add("state", node, index, change[(change > 0.0) & (change < half)])

    def _add_decay(self, step: Step, node: Node, index: int) -> None:
        """Count decays too small to move a parameter, which its update leaves still."""
        graph = step.graph
        new = next(graph.nodes[new] for old, new in graph.updates if old == node.id)
        found = decay_of(graph, new)
        if found is None or found[1].name not in step.arrays:
            return
        decays, rate = found
        share = float(step.arrays[rate.name]) * decays.attributes["weight_decay"]
        decay = np.abs(self._before[node.name]) * np.float32(share)
        half = half_unit(self._before[node.name], format_named(node.format))
        small = (decay > 0.0) & (decay < half)
        if decays is new:  # in an operation of its own it is stored before the update is added
            small &= np.abs(step.arrays[UPDATE + node.name]) < half
        self._add("decay", node, index, decay[small])

    def lost(self) -> tuple[LostValues, ...]:
        """Return swamped updates, decays and states by layer, as they were, not projected."""
        return self._tally.lost()

    def swamped(self) -> Swamped:
        """Return what was counted so far."""
        if not self._shares:
            return NOT_COUNTED
        share = sum(self._projected.values()) / self._sizes.total()
        shares = {layer: count / self._sizes[layer] for layer, count in self._projected.items()}
        layer = max(shares, key=lambda name: shares[name])
        worst = (layer, shares[layer]) if shares[layer] else ("", 0.0)
        return Swamped(tuple(self._shares), share, *worst)


def _parameters_with_rounding(graph: Graph) -> list[tuple[Node, Rounding]]:
    """Return, for each parameter, its source and how its new value is rounded."""
    pairs = [(graph.nodes[old], graph.nodes[new]) for old, new in graph.updates]
    return [(old, new.rounding) for old, new in pairs if old.op.name == "parameter"]


def _low_states(graph: Graph) -> list[tuple[Node, Rounding]]:
    """Return, for each state kept below float32, its source and how its new value is rounded."""
    pairs = [(graph.nodes[old], graph.nodes[new]) for old, new in graph.updates]
    names = {node.name for node in graph.nodes if node.op.kind == "source"}
    return [
        (old, new.rounding)
        for old, new in pairs
        if _is_low_state(old) and EXACT + old.name in names
    ]


def _swamped_sizes(
    update: FloatArray, before: FloatArray, fmt: Format, factor: float
) -> tuple[FloatArray, int]:
    """Return the sizes of swamped updates, and how many were with ones `factor` times as large."""
    order: Literal["K", "C"] = "K" if update.strides == before.strides else "C"
    update, before = update.ravel(order), before.ravel(order)
    found, later = [], 0
    # what a span makes stays in the cache of a processor; a GPU takes all at once
    span = SPAN if isinstance(update, np.ndarray) else max(len(update), 1)
    for start in range(0, len(update), span):
        part = np.abs(update[start : start + span])
        half = half_unit(before[start : start + span], fmt)
        moving = part > 0.0
        small = part < half
        small &= moving
        count = np.count_nonzero(small)
        if count:
            found.append(part[small])
        if factor != 1.0:
            part *= np.float32(factor)
            count = np.count_nonzero(moving & (part < half))
        later += int(count)
    return np.concatenate(found) if found else np.zeros(0, np.float32), later


def half_unit(values: FloatArray, fmt: Format) -> FloatArray:
    """Return half the distance between the numbers of `fmt` in the binade of each value.

    Below float32's smallest number that is zero.
    """
    # A number of exponent e and m mantissa bits lies 2**(e - m) from the next, so that half a unit
    # is 2**(e - m - 1). The power of two is what masking leaves of the float32; below the smallest
    # normal number the distance stays (subnormals). Tapered formats have their own m for every e.
    if fmt.taper:
        _, above = np.frexp(values)
        exponents = np.where(values == 0.0, LOWEST_EXPONENT, above - 1)
        units: FloatArray = _half_units(fmt)[exponents - LOWEST_EXPONENT]
        return units
    bits = np.empty_like(values, np.int32)  # stays an array where the value is a single one
    np.bitwise_and(values.view(np.int32), np.int32(EXPONENT), out=bits)
    powers: FloatArray = bits.view(np.float32)
    np.maximum(powers, np.float32(fmt.min_normal), out=powers)
    powers *= np.float32(2.0 ** -(fmt.mantissa_bits + 1))
    return powers


@functools.cache
def _half_units(fmt: Format) -> FloatArray:
    exponents = range(LOWEST_EXPONENT, HIGHEST_EXPONENT + 1)
    return np.array([2.0 ** (fmt.quantum_exponent(e) - 1) for e in exponents], np.float32)
