"""Updates that vanish: too small to move the parameter that they are added to, as it is stored."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from policysearch.emulator.compile import Step
from policysearch.formats import Format, Rounding, format_named
from policysearch.graph import FloatArray, Graph, Node, size
from policysearch.ops.source import state
from policysearch.train.lost_values import LostValues, Tally

UPDATE = "update of "
"""Before a parameter's name: the source that holds its last update."""

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
    place; the decay of AdamW, which is a share of the parameter, is no part of it. All other
    nodes keep their place, and with it their bits.
    """
    nodes, updates = list(graph.nodes), list(graph.updates)
    for old, new in graph.updates:
        parameter, new_value = graph.nodes[old], graph.nodes[new]
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

    def after(self, step: Step, index: int, factor: float) -> None:
        """Count the updates of step `index`, and those `factor` times as large."""
        swamped = 0
        projected: Counter[str] = Counter()
        self._sizes = Counter()
        for node, rounding in _parameters_with_rounding(step.graph):
            self._sizes[node.layer] += size(node.shape)
            projected[node.layer] += 0
            if rounding.mode == "stochastic":
                continue  # a small update moves the parameter as far as it should, on average
            update = np.abs(step.arrays[UPDATE + node.name])
            half = half_unit(self._before[node.name], format_named(node.format))
            moving = update > 0.0
            small = update[moving & (update < half)]
            count = self._tally.add("swamped", node.layer, "update", index, small, update.size)
            swamped += count
            if factor != 1.0:
                update *= np.float32(factor)
                count = int(np.count_nonzero(moving & (update < half)))
            projected[node.layer] += count
        self._shares.append((index, swamped / self._sizes.total()))
        self._projected = dict(projected)

    def lost(self) -> tuple[LostValues, ...]:
        """Return the swamped updates by layer, as they were, not projected."""
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
    bits = np.empty(values.shape, np.uint32)  # stays an array where the value is a single one
    np.bitwise_and(values.view(np.uint32), np.uint32(EXPONENT), out=bits)
    powers: FloatArray = bits.view(np.float32)
    np.maximum(powers, np.float32(fmt.min_normal), out=powers)
    powers *= np.float32(2.0 ** -(fmt.mantissa_bits + 1))
    return powers


@functools.cache
def _half_units(fmt: Format) -> FloatArray:
    exponents = range(LOWEST_EXPONENT, HIGHEST_EXPONENT + 1)
    return np.array([2.0 ** (fmt.quantum_exponent(e) - 1) for e in exponents], np.float32)
