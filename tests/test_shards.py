"""Tensor parallelism: the part of a step that one of several devices has."""

from __future__ import annotations

import math

import pytest

from policysearch.cost.parallel.shards import WHOLE, Exchange, Split, shard, split_of
from policysearch.graph import Attrs, Graph, Node, Shape, size
from policysearch.nn.chain import Chain
from policysearch.nn.models import gpt, lenet5, mlp
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step

WIDE = mlp((64, 128, 64, 16), "relu")
POLICIES = ("float32", "torch.autocast.bfloat16", "te.delayed", "te.current")


def _graph(model: Chain, policy: str, batch: int = 8) -> Graph:
    graph = trace_step(model, "softmax_cross_entropy", Optimizer("adam"), batch)
    return apply_policy(graph, preset(policy, model.layer_names))


def _flops(graph: Graph) -> int:
    return sum(
        n.op.flops([x.shape for x in graph.inputs_of(n)], n.shape, n.attributes)
        for n in graph.nodes
        if n.op.kind == "gemm"
    )


def _parameters(graph: Graph) -> int:
    return sum(size(n.shape) for n in graph.nodes if n.op.name == "parameter" and len(n.shape) > 1)


def _exchanged(graph: Graph, exchanges: tuple[Exchange, ...], role: str) -> list[Node]:
    nodes = (graph.nodes[each.node] for each in exchanges if each.kind == "all_reduce")
    return [node for node in nodes if node.role == role and size(node.shape) > 1]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ways", [2, 4])
def test_a_wide_net_is_divided_whole(policy: str, ways: int) -> None:
    whole = _graph(WIDE, policy)
    part, exchanges = shard(whole, ways)
    assert _flops(part) * ways == _flops(whole)
    assert _parameters(part) * ways == _parameters(whole)
    states = [
        sum(size(n.shape) for n in g.nodes if n.op.name == "state" and len(n.shape) > 1)
        for g in (part, whole)
    ]
    assert states[0] * ways == states[1] > 0
    # three layers: along outputs, along inputs, along outputs; so one sum each way
    assert [n.shape for n in _exchanged(whole, exchanges, "fprop")] == [(8, 64)]
    assert [n.shape for n in _exchanged(whole, exchanges, "dgrad")] == [(8, 64)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_block_sums_twice_each_way(policy: str) -> None:
    """Shoeybi et al. (2019), figure 4: attention and MLP, one all-reduce each, both ways.

    And one of the head's gradient, whose logits are gathered for the loss.
    """
    whole = _graph(gpt((8,), 16, width=16, hidden=(64,), heads=2), policy)
    part, exchanges = shard(whole, 2)
    assert len(_exchanged(whole, exchanges, "fprop")) == 2
    assert len(_exchanged(whole, exchanges, "dgrad")) == 3
    products = [n for n in whole.nodes if n.op.kind == "gemm"]
    assert all(2 * size(part.nodes[n.id].shape) >= size(n.shape) for n in products)
    assert _flops(part) * 2 == _flops(whole)
    scores = [n for n in products if n.shape[-2:] == (8, 8)]
    assert scores and all(part.nodes[n.id].shape[0] * 2 == n.shape[0] for n in scores)


@pytest.mark.parametrize("model", [WIDE, lenet5()], ids=lambda model: model.name)
@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_are_what_the_ops_make_of_their_inputs(model: Chain, policy: str) -> None:
    """But where an input is gathered first; the oracle is the shape rule of each op."""
    whole = _graph(model, policy)
    part, exchanges = shard(whole, 2)
    gathered = {each.node for each in exchanges if each.kind == "all_gather"}
    asked = 0
    for node in part.nodes:
        shaped = "shape" in node.attributes or "split" in node.attributes
        if node.inputs and not shaped and not gathered.intersection(node.inputs):
            inputs = [x.shape for x in part.inputs_of(node)]
            found = node.op.shape(inputs, node.attributes)
            # elementwise and in gradients of parameters, what is whole is read in part
            part_read = node.op.kind == "elementwise" or node.role == "wgrad"
            in_part = part_read and found == whole.nodes[node.id].shape
            assert found == node.shape or in_part, (node.op.name, node.layer, inputs)
            asked += found != whole.nodes[node.id].shape
    assert asked > 10


@pytest.mark.parametrize(
    ("name", "shape", "attrs", "axis", "expected"),
    [
        ("relu", (8, 16), {}, 1, (8, ())),
        ("softmax", (8, 16), {}, 0, (1, ())),
        ("softmax", (8, 16), {}, 1, (WHOLE, (0,))),  # a row is read whole
        ("reshape", (8, 16), {"shape": (8, 4, 4)}, 1, (8, ())),
        ("max_pool", (4, 8, 6, 6), {"window": 2, "stride": 2}, 1, (4, ())),
        ("max_pool", (4, 8, 6, 6), {"window": 2, "stride": 2}, 2, (WHOLE, (0,))),
    ],
)
def test_an_op_keeps_the_axis_that_it_does_not_read_along(
    name: str, shape: Shape, attrs: Attrs, axis: int, expected: tuple[Split, tuple[int, ...]]
) -> None:
    """A split is named by how many rows lie before its axis."""
    b = Builder()
    x = b.emit(OPS["data"], attrs={"shape": shape}, role="input", name="x")
    made = b.emit(OPS[name], x, attrs=attrs)
    nodes = b.graph({"made": made}).nodes
    assert split_of(nodes[made], [nodes[x]], [math.prod(shape[:axis])], 2) == expected


def test_what_does_not_divide_stays_whole() -> None:
    whole = _graph(mlp((64, 30, 15), "relu"), "float32")
    part, exchanges = shard(whole, 4)
    assert _flops(part) == _flops(whole) and not exchanges
    assert shard(whole, 1) == (whole, ())


def test_only_scalars_of_a_split_gradient_are_shared() -> None:
    """Whether gradients are finite, and their norm, need one number of each device."""
    whole = _graph(WIDE, "apex.O2")
    exchanges = shard(whole, 2)[1]
    checks = [e for e in exchanges if whole.nodes[e.node].op.name == "all_finite"]
    assert [(e.kind, e.bytes) for e in checks] == [("all_reduce", 4)]
