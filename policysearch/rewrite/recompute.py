"""Activations that are not kept but computed again in the backward pass, block by block.

What a block of layers computes forward and its backward reads is dropped, and made a second time
from what enters the block, just before its backward begins (Chen et al., arXiv 1604.06174; as
`torch.utils.checkpoint`, which stops as soon as all is there). What leaves a block is kept: the
next one reads it. Only the priced step changes: the values are the same bits, and so is training.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from policysearch.graph import Graph, Node
from policysearch.ops.builder import renumbered
from policysearch.values import InputError

RANGE = ".."


def layers_of_blocks(layers: Sequence[str], blocks: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the layers of each block, in the order of `layers`.

    A block is a layer; or what stands before a dot in the names of several ("block1"); or all
    layers from one to another ("conv1..relu1"). InputError for a name of none, and for a layer in
    two blocks.
    """
    found = tuple(_layers_of(layers, block) for block in blocks)
    met: set[str] = set()
    for block, own in zip(blocks, found, strict=True):
        if met.intersection(own):
            raise InputError(f"recompute: {block!r} holds {min(met & set(own))!r} a second time")
        met.update(own)
    return found


def _layers_of(layers: Sequence[str], block: str) -> tuple[str, ...]:
    if RANGE in block:
        first, _, last = block.partition(RANGE)
        if first in layers and last in layers[layers.index(first) :]:
            return tuple(layers[layers.index(first) : layers.index(last) + 1])
    own = tuple(layer for layer in layers if layer == block or layer.startswith(f"{block}."))
    if own and RANGE not in block:
        return own
    raise InputError(
        f"recompute: {block!r}; expected a layer, the part of layers' names before a dot, or "
        f"first..last, of: {', '.join(layers)}"
    )


def recomputed(graph: Graph, blocks: Iterable[Sequence[str]]) -> Graph:
    """Return the step in which the layers of each block are computed again in backward.

    The second nodes have the role dgrad: they run in the backward pass.
    """
    for layers in blocks:
        graph = _with_block_again(graph, frozenset(layers))
    return graph


def _with_block_again(graph: Graph, layers: frozenset[str]) -> Graph:
    inner = {n.id for n in graph.nodes if n.layer in layers and _forward(n)}
    backward = [n for n in graph.nodes if n.role in ("dgrad", "wgrad")]
    leaving = {i for n in graph.nodes if _forward(n) and n.id not in inner for i in n.inputs}
    leaving |= {i for _, i in graph.outputs} | {i for pair in graph.updates for i in pair}
    dropped = inner - leaving
    wanted = {i for node in backward for i in node.inputs} & dropped
    for node in reversed(graph.nodes):
        if node.id in wanted:
            wanted |= dropped.intersection(node.inputs)
    if not wanted:
        return graph
    again = {id: len(graph.nodes) + place for place, id in enumerate(sorted(wanted))}
    second = [
        replace(_recomputed_reader(graph.nodes[id], again), id=again[id], role="dgrad")
        for id in again
    ]
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.role in ("dgrad", "wgrad") and not again.keys().isdisjoint(node.inputs):
            nodes += second
            second = []
            node = _recomputed_reader(node, again)
        nodes.append(node)
    return renumbered(graph, nodes)


def _forward(node: Node) -> bool:
    return node.role == "fprop" and node.op.kind != "source"


def _recomputed_reader(node: Node, again: dict[int, int]) -> Node:
    return replace(node, inputs=tuple(again.get(i, i) for i in node.inputs))
