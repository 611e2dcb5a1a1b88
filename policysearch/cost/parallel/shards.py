"""Tensor parallelism: the part of a step that one of several devices has, and what they exchange.

Of a product whose input is whole, the weight is split along its outputs, and the result stays
split; of one whose input is split along what it contracts, the weight is split likewise, and the
parts of the result are summed over the devices. So in pairs, as Megatron-LM does it (Shoeybi et
al., 2019), and of the gradients what the same rules make of them. An op that needs a whole tensor
has it gathered first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from policysearch.cost.memory import node_bytes
from policysearch.cost.parallel.collectives import Kind
from policysearch.graph import Graph, Node, Shape

Split = int
"""Where a value is split: how many elements lie before the split extent, in row-major order."""

WHOLE: Split = 0
"""Every device has all of it."""

PARTIAL: Split = -1
"""Every device has a summand of it."""

ROWWISE = frozenset(
    {
        "softmax",
        "softmax_grad",
        "layer_norm",
        "layer_norm_grad",
        "layer_statistics",
        "amax",
    }
)
"""Ops that need whole rows, and treat every row alike."""

IMAGES = frozenset({"max_pool", "max_pool_grad", "average_pool", "average_pool_grad"})
"""Ops that treat every image and channel by itself."""

SUMS = frozenset({"amax", "all_finite", "global_norm"})
"""Ops whose scalar is made of one scalar from each part."""

CHANNELS = frozenset({"bias_grad", "batch_mean", "batch_variance", "batch_norm_weight_grad"})
"""Ops that sum over all axes but the second."""

LINEAR = frozenset({"add", "cast", "reshape", "transpose", "scale", "descale"})
"""Ops that may be done before the summands are summed."""

SplitOf = tuple[Split, tuple[int, ...]]
"""The split of a result, and the places of the inputs that have to be whole for it."""


def split_of(node: Node, inputs: Sequence[Node], splits: Sequence[Split], ways: int) -> SplitOf:
    """Return how the result of `node` is split, and which inputs must be made whole first."""
    if all(split == WHOLE for split in splits):
        return WHOLE, ()
    summed = [i for i, tensor in enumerate(inputs) if tensor.shape == inputs[0].shape]
    if node.op.name in LINEAR and {splits[i] for i in summed} == {PARTIAL}:
        return PARTIAL, ()
    partial = tuple(i for i, split in enumerate(splits) if split == PARTIAL)
    rest = [WHOLE if split == PARTIAL else split for split in splits]
    result, wholes = _of_parts(node, inputs, rest, ways)
    return result, (*partial, *wholes)


def _of_parts(node: Node, inputs: Sequence[Node], splits: list[Split], ways: int) -> SplitOf:
    """Return what `split_of` does where no input is a summand."""
    parts = [i for i, split in enumerate(splits) if split != WHOLE]
    if not parts:
        return WHOLE, ()
    name, first, shape = node.op.name, splits[parts[0]], inputs[parts[0]].shape
    if node.op.kind == "gemm":
        result = _of_product(node, inputs, splits)
    elif name == "transpose":
        result = _transposed_split(node, inputs[0].shape, first, ways)
    elif name == "reshape":
        result = first  # what lies before the split in row-major order stays there
    elif name in IMAGES:
        result = first if first < math.prod(node.shape[:2]) else WHOLE
    elif name in CHANNELS:
        result = _channel(shape, first)
    elif name in ROWWISE:
        result = WHOLE if first * shape[-1] >= math.prod(shape) else first
        if result != WHOLE and name == "layer_statistics":
            result = first // shape[-1] * node.shape[-1]
    else:
        result = _elementwise(node, inputs, splits, parts)
    if result == WHOLE or (result != PARTIAL and not _divides(node.shape, result, ways)):
        return WHOLE, tuple(parts)
    return result, ()


def _divides(shape: Shape, split: Split, ways: int) -> bool:
    before = 1
    for extent in shape:
        if before <= split < before * extent:
            return extent % ways == 0
        before *= extent
    return False


def _elementwise(
    node: Node, inputs: Sequence[Node], splits: Sequence[Split], parts: Sequence[int]
) -> Split:
    """Follow an input of the result's shape; whole ones with it are read in part."""
    alike = {splits[i] for i in parts if inputs[i].shape == node.shape}
    pointwise = node.op.kind == "elementwise" and node.op.pointwise
    pointwise |= node.op.name == "batch_norm_grad"
    return alike.pop() if pointwise and len(alike) == 1 else WHOLE


def _channel(shape: Shape, split: Split) -> Split:
    """Return the split of sums over all axes but the second."""
    rows = shape[0]
    return split // rows if rows <= split < rows * shape[1] else WHOLE


def _transposed_split(node: Node, shape: Shape, split: Split, ways: int) -> Split:
    """Return the split behind a transposition, which may split extents before it moves them."""
    attrs = node.attributes
    extents, axes = tuple(attrs.get("split", shape)), tuple(attrs["axes"])
    axis, offset = _place(extents, split)
    before: int = math.prod(extents[i] for i in axes[: axes.index(axis)])
    return before * offset if extents[axis] % ways == 0 else WHOLE


def _place(shape: Shape, split: Split) -> tuple[int, int]:
    """Return the axis a split lies in, and how much of that axis lies before it."""
    before = 1
    for axis, extent in enumerate(shape):
        if before <= split < before * extent:
            return axis, split // before
        before *= extent
    raise ValueError(f"{shape} is not split at {split}")


def _of_product(node: Node, inputs: Sequence[Node], splits: Sequence[Split]) -> Split:
    """Return the split of a product: that of an axis it keeps, PARTIAL where it sums over it.

    Written as in an einsum, "mk,kn->mn": an operand split along m or n leaves the result split
    there, one split along k a summand of it. Operands split along two letters have no common part.
    """
    if node.attributes.get("groups", 1) != 1:
        return WHOLE
    left, right = _letters(node, inputs)
    out = _result_letters(node, left, right)
    marks = set()
    for letters, tensor, split in zip((left, right), inputs[:2], splits[:2], strict=True):
        if split != WHOLE:
            axis, offset = _place(tensor.shape, split)
            marks.add((letters[axis], offset))
    if len(marks) != 1:
        return WHOLE
    ((letter, offset),) = marks
    if letter not in out:
        # both operands have their part of what is summed over, or the whole one is read in part
        return PARTIAL
    axis = out.index(letter)
    return math.prod(node.shape[:axis]) * offset


def _letters(node: Node, inputs: Sequence[Node]) -> tuple[str, str]:
    """Return the axes of both operands by letter: equal letters are the same index."""
    name = node.op.name.removesuffix("_blocks")
    if name == "conv2d":
        return "nchw", "ocij"
    if name == "conv2d_dgrad":
        return "nohw", "ocij"
    if name == "conv2d_wgrad":
        return "nohw", "ncij"
    if name == "conv_transpose2d":
        return "nchw", "coij"
    attrs, batch = node.attributes, "xyz"[: len(inputs[0].shape) - 2]
    left = batch + ("km" if attrs.get("transpose_a") else "mk")
    right = batch + ("nk" if attrs.get("transpose_b") else "kn")
    return left, right


def _result_letters(node: Node, left: str, right: str) -> str:
    name = node.op.name.removesuffix("_blocks")
    if name in ("conv2d", "conv_transpose2d"):
        return "nohw"
    if name == "conv2d_dgrad":
        return "nchw"
    if name == "conv2d_wgrad":
        return "ocij"
    return left[: len(left) - 2] + "mn"


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

    In a first run products decide for their weights, in a second one all values follow: the format
    casts and optimizer states of a weight come before the product that decides for it.
    """

    def __init__(self, graph: Graph, ways: int, weights: dict[int, Split]) -> None:
        self.graph = graph
        self.ways = ways
        self.weights = dict(weights)
        decided = [(graph.nodes[i], split) for i, split in weights.items()]
        self.named = {(node.name, node.shape): split for node, split in decided}
        self.layers = {(node.layer, node.shape): split for node, split in decided}
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
        axis = _place(node.shape, split)[0]
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
        splits = [self.splits[i] for i in node.inputs]
        if node.op.kind == "gemm" and node.role == "fprop":
            splits[1] = self._of_weight(node, splits)
        inputs = self.graph.inputs_of(node)
        if node.op.name in SUMS and not node.shape:
            if set(splits) != {WHOLE}:
                self.exchanges.append(Exchange(node.id, "all_reduce", node_bytes(node)))
            return WHOLE
        if node.op.name == "bias":
            self._decide_bias(node, splits[0])
        result, wholes = split_of(node, inputs, splits, self.ways)
        for place in wholes:
            self._make_whole(node.inputs[place])
        if result == WHOLE and node.role == "dgrad":
            # the gradient of a value that was gathered: a device goes on with its part of it
            alike = (i for i in wholes if inputs[i].shape == node.shape and splits[i] != PARTIAL)
            return next((splits[i] for i in alike), WHOLE)
        if result == WHOLE and node.role == "wgrad":
            # of operands that are whole a device reads what its part of the gradient needs
            return self.layers.get((node.layer, node.shape), WHOLE)
        return result

    def _of_weight(self, node: Node, splits: list[Split]) -> Split:
        """Decide how the weight of a product is split, where nothing has decided before.

        By its columns behind a whole input, by its rows behind a split one: then the second of two
        layers takes the parts of the first as they are, and only its sums are exchanged.
        """
        parameter = self._parameter(node.inputs[1])
        if parameter is None:
            return splits[1]
        if parameter.id in self.weights:
            return self.weights[parameter.id]
        weight = self.graph.nodes[node.inputs[1]]
        conv = node.op.name.startswith("conv")
        out = 0 if conv or node.attributes.get("transpose_b") else len(weight.shape) - 1
        deep = 1 if conv else len(weight.shape) - 1 - out
        column = splits[0] in (WHOLE, PARTIAL)
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
        along = split not in (WHOLE, PARTIAL) and _place(node.shape, split)[0] == 1
        if bias is not None and along:
            self.weights.setdefault(bias.id, 1)

    def _chain(self, i: int) -> list[int]:
        """Return the nodes from `i` down to the parameter that it is a copy of."""
        chain = [i]
        while self.graph.nodes[chain[-1]].op.converts:
            chain.append(self.graph.nodes[chain[-1]].inputs[0])
        return chain

    def _parameter(self, i: int) -> Node | None:
        node = self.graph.nodes[self._chain(i)[-1]]
        return node if node.op.name == "parameter" else None

    def _make_whole(self, i: int) -> None:
        """Have value `i` whole on every device: summed where it is in parts, else gathered."""
        split, node = self.splits[i], self.graph.nodes[i]
        if split == WHOLE:
            return
        kind: Kind = "all_reduce" if split == PARTIAL else "all_gather"
        if not any(exchange.node == i for exchange in self.exchanges):
            self.exchanges.append(Exchange(i, kind, node_bytes(node)))
        if split == PARTIAL:
            self.splits[i] = WHOLE
