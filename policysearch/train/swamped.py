"""Updates that vanish: too small to move the parameter that they are added to, as it is stored."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from policysearch.emulator.compile import Step
from policysearch.formats import Format, Rounding, format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.ops.source import state

UPDATE = "update of "
"""Before a parameter's name: the source that holds its last update."""

LOWEST_EXPONENT, HIGHEST_EXPONENT = -200, 128
"""Beyond the exponents of every float32 number; zero counts as having the lowest."""


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


def watched(graph: Graph) -> Graph:
    """Return the step with, for each parameter, its update in the source UPDATE + its name.

    That is the node of the new parameter once more, in float32, from zeros in the parameter's
    place; the decay of AdamW, which is a share of the parameter, is no part of it. All other
    nodes keep their place, and with it their bits.
    """
    nodes, updates = list(graph.nodes), list(graph.updates)
    for old, new in graph.updates:
        parameter, made = graph.nodes[old], graph.nodes[new]
        if parameter.op.name != "parameter":
            continue
        kept = ("shape", parameter.shape)
        at, name = len(nodes), UPDATE + parameter.name
        nodes.append(
            replace(parameter, id=at, op=state, name=name, format="float32", attrs=(kept,))
        )
        exact = replace(made, format="float32", rounding=Rounding())
        nodes.append(replace(exact, id=at + 1, inputs=(at, *made.inputs[1:])))
        updates.append((at, at + 1))
    return replace(graph, nodes=tuple(nodes), updates=tuple(updates))


class Watch:
    """Counts swamped updates in the steps it is told of: `before` the update and `after` it."""

    def __init__(self) -> None:
        self._shares: list[tuple[int, float]] = []
        self._projected: dict[str, float] = {}
        self._sizes: Counter[str] = Counter()
        self._before: dict[str, FloatArray] = {}

    def before(self, step: Step) -> None:
        """Remember the parameters of a `watched` step, and forget its last updates."""
        self._before = {}
        for node, _, _ in _watched_parameters(step.graph):
            self._before[node.name] = step.arrays[node.name].copy(order="K")
            step.arrays[UPDATE + node.name][...] = 0.0

    def after(self, step: Step, index: int, factor: float) -> None:
        """Count the updates of step `index`, and those `factor` times as large."""
        swamped = 0
        projected: Counter[str] = Counter()
        self._sizes = Counter()
        for node, layer, rounding in _watched_parameters(step.graph):
            update = np.abs(step.arrays[UPDATE + node.name].astype(np.float64))
            half = half_unit(self._before[node.name], format_named(node.format))
            # By chance the small update moves the parameter as far as it should, on average.
            moving = update[(update > 0.0) & (rounding.mode != "stochastic")]
            limits = half[(update > 0.0) & (rounding.mode != "stochastic")]
            swamped += int(np.count_nonzero(moving < limits))
            projected[layer] += int(np.count_nonzero(moving * factor < limits))
            self._sizes[layer] += update.size
        self._shares.append((index, swamped / self._sizes.total()))
        self._projected = dict(projected)

    def swamped(self) -> Swamped:
        """Return what was counted so far."""
        if not self._shares:
            return NOT_COUNTED
        share = sum(self._projected.values()) / self._sizes.total()
        shares = {layer: count / self._sizes[layer] for layer, count in self._projected.items()}
        layer = max(shares, key=lambda name: shares[name])
        worst = (layer, shares[layer]) if shares[layer] else ("", 0.0)
        return Swamped(tuple(self._shares), share, *worst)


def _watched_parameters(graph: Graph) -> list[tuple[Node, str, Rounding]]:
    """Return, for each parameter, its source, its layer and how its new value is rounded."""
    pairs = [(graph.nodes[old], graph.nodes[new]) for old, new in graph.updates]
    return [(old, old.layer, new.rounding) for old, new in pairs if old.op.name == "parameter"]


def half_unit(values: FloatArray, fmt: Format) -> NDArray[np.float64]:
    """Return half the distance between the numbers of `fmt` in the binade of each value."""
    _, above = np.frexp(values)
    exponents = np.where(values == 0.0, LOWEST_EXPONENT, above - 1)
    found: NDArray[np.float64] = _half_units(fmt)[exponents - LOWEST_EXPONENT]
    return found


@functools.cache
def _half_units(fmt: Format) -> NDArray[np.float64]:
    exponents = range(LOWEST_EXPONENT, HIGHEST_EXPONENT + 1)
    return np.array([2.0 ** (fmt.quantum_exponent(e) - 1) for e in exponents])
