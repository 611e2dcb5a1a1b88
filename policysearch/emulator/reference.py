"""What a step means: for each node the op's numpy, then its values rounded onto its format."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from policysearch.emulator.nodes import Observer, attributes, draws, source_array
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.layout import empty
from policysearch.rounding.rounder import Fast, rounder

Sources = Mapping[str, FloatArray]


class Reference:
    """Runs a step as its nodes say, every value in an array of its own (see `Step`)."""

    fast: Fast = "off"

    def __init__(self, graph: Graph, seed: int, sources: Sources, observer: Observer | None):
        self.graph, self.seed, self.observer, self.step_index = graph, seed, observer, 0
        self._fed = {n.id: source_array(n, sources) for n in graph.nodes if n.op.kind == "source"}
        self.arrays = {graph.nodes[i].name: array for i, array in self._fed.items()}
        self._step, self._values = 0, self._fed

    def forward_backward(self) -> None:
        self._step, self._values = self.step_index, dict(self._fed)
        self.step_index += 1
        self._run({i for _, i in self.graph.outputs})

    def apply_updates(self) -> None:
        self._run({new for _, new in self.graph.updates})
        for old, new in self.graph.updates:
            self._values[old][...] = self._values[new]

    def value(self, name: str) -> FloatArray:
        return self._values[self.graph.output(name).id]

    def _run(self, wanted: set[int]) -> None:
        for i in sorted(self.graph.needed(wanted) - self._values.keys()):
            self._values[i] = self._node_value(self.graph.nodes[i])

    def _node_value(self, node: Node) -> FloatArray:
        out, attrs = empty(node.shape), attributes(self.graph, node, "off", self.observer)
        with np.errstate(all="ignore"):
            out[...] = node.op.forward([self._values[i] for i in node.inputs], attrs)
        if node.format != "float32":
            flat, before = out.ravel(order="K"), out.flatten(order="K")
            onto = rounder(format_named(node.format), node.rounding, seed=self.seed, fast="off")
            onto(flat, flat, draws(node, self._step))
            if self.observer is not None:
                self.observer(node, before, flat)
        return out
