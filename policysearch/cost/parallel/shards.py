"""Tensor parallelism: the part of a step that one of several devices has, and what they exchange.

Of a product whose input is whole, the weight is split along its outputs, and the result stays
split; of one whose input is split along what it contracts, the weight is split likewise, and the
parts of the result are summed over the devices. So in pairs, as Megatron-LM does it (Shoeybi et
al., 2019), and of the gradients what the same rules make of them. An op that needs a whole tensor
has it gathered first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from policysearch.cost.parallel.collectives import Kind
from policysearch.cost.parallel.splits import PARTIAL, SUMS, WHOLE, Split, split_of
from policysearch.cost.storage import node_bytes
from policysearch.graph import Graph, Node


@dataclass(frozen=True)
class Exchange:
    """What the devices of a group exchange of one value: `bytes` of the whole tensor.

    `node` is the value's id; the step waits for it.
    """

    node: int
    kind: Kind
    bytes: int


def shard(graph: Graph, ways: int) -> tuple[Graph, tuple[Exchange, ...]]:
    """Return the part of one of `ways` devices, with the shapes it has there, and the exchanges.

    A layer whose extents do not divide by `ways` stays whole. The nodes keep their ids; a value
    that is gathered keeps the shape of its part.
    """
    if ways == 1:
        return graph, ()
    first = _Sharding(graph, ways, {})
    first.run()
    second = _Sharding(graph, ways, first.weights)
    second.run()
    nodes = tuple(second.part(node) for node in graph.nodes)
    return replace(graph, nodes=nodes), tuple(second.exchanges)


class _Sharding:
    """How every value is split; `weights` are the splits of parameters that are decided.

    In a first run products decide for their weights, in a second one all values follow.
    """

    def __init__(self, graph: Graph, ways: int, weights: dict[int, Split]) -> None:
        self.graph = graph
        self.ways = ways
        self.weights = dict(weights)
        named = [(graph.nodes[i], split) for i, split in weights.items()]
        self.named = {(node.name, node.shape): split for node, split in named}
        self.layers = {(node.layer, node.shape): split for node, split in named}
        self.splits: list[Split] = []
        self.exchanges: list[Exchange] = []

    def run(self) -> None:
        for node in self.graph.nodes:
            self.splits.append(WHOLE)
            self.splits[node.id] = self._split(node)

    def part(self, node: Node) -> Node:
        """Return the node with the shape that it has on one device."""
        split = self.splits[node.id]
        if split in (WHOLE, PARTIAL):
            return node
        axis = axis_of(node, split)
        extent = node.shape[axis] // self.ways
        return replace(node, shape=(*node.shape[:axis], extent, *node.shape[axis + 1 :]))

    def _split(self, node: Node) -> Split:
        if node.op.name == "parameter":
            return self.weights.get(node.id, WHOLE)
        if node.op.name == "state":
            # the state of a parameter is called after it
            return self.named.get((node.name.rpartition(".")[0], node.shape), WHOLE)
        if not node.inputs:
            return WHOLE
        given = [self.splits[i] for i in node.inputs]
        if node.op.kind == "gemm" and node.role == "fprop":
            given[1] = self._of_weight(node, given)
        inputs = self.graph.inputs_of(node)
        if node.op.name in SUMS and not node.shape:
            if set(given) != {WHOLE}:
                self.exchanges.append(Exchange(node.id, "all_reduce", node_bytes(node)))
            return WHOLE
        if node.op.name == "bias":
            self._decide_bias(node, given[0])
        made, wholes = split_of(node, inputs, given, self.ways)
        for place in wholes:
            self._make_whole(node.inputs[place])
        if made == WHOLE and node.role == "dgrad":
            # the gradient of a value that was gathered: a device goes on with its part of it
            alike = (i for i in wholes if inputs[i].shape == node.shape and given[i] != PARTIAL)
            return next((given[i] for i in alike), WHOLE)
        if made == WHOLE and node.role == "wgrad":
            # of operands that are whole a device reads what its part of the gradient needs
            return self.layers.get((node.layer, node.shape), WHOLE)
        return made

    def _of_weight(self, node: Node, given: list[Split]) -> Split:
        """Decide how the weight of a product is split, where nothing has decided before."""
        parameter = self._parameter(node.inputs[1])
        if parameter is None:
            return given[1]
        if parameter.id in self.weights:
            return self.weights[parameter.id]
        weight = self.graph.nodes[node.inputs[1]]
        conv = node.op.name.startswith("conv")
        out = 0 if conv or node.attributes.get("transpose_b") else len(weight.shape) - 1
        deep = 1 if conv else len(weight.shape) - 1 - out
        column = given[0] in (WHOLE, PARTIAL)
        axis = out if column else deep
        if node.attributes.get("groups", 1) != 1 or weight.shape[axis] % self.ways:
            return WHOLE
        split = math.prod(weight.shape[:axis])
        self.weights[parameter.id] = split
        for i in self._chain(node.inputs[1]):
            self.splits[i] = split
        return split

    def _decide_bias(self, node: Node, split: Split) -> None:
        """Split the bias that is added to a result split along its features."""
        bias = self._parameter(node.inputs[1])
        along = split not in (WHOLE, PARTIAL) and axis_of(node, split) == 1
        if bias is not None and along:
            self.weights.setdefault(bias.id, 1)

    def _chain(self, i: int) -> list[int]:
        """Return the nodes from `i` down to the parameter that it is a copy of."""
        found = [i]
        while self.graph.nodes[found[-1]].op.converts:
            found.append(self.graph.nodes[found[-1]].inputs[0])
        return found

    def _parameter(self, i: int) -> Node | None:
        node = self.graph.nodes[self._chain(i)[-1]]
        return node if node.op.name == "parameter" else None

    def _make_whole(self, i: int) -> None:
        """Have value `i` whole on every device: summed where it is in parts, else gathered."""
        split, node = self.splits[i], self.graph.nodes[i]
        if split == WHOLE:
            return
        kind: Kind = "all_reduce" if split == PARTIAL else "all_gather"
        if not any(made.node == i for made in self.exchanges):
            self.exchanges.append(Exchange(i, kind, node_bytes(node)))
        if split == PARTIAL:
            self.splits[i] = WHOLE


def axis_of(node: Node, split: Split) -> int:
    """Return the axis of a value that is split."""
    before = 1
    for axis, extent in enumerate(node.shape):
        if before <= split < before * extent:
            return axis
        before *= extent
    raise ValueError(f"{node.op.name} {node.shape} is not split at {split}")
