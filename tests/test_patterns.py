"""Patterns are found where a brute-force search over all tuples of nodes finds them."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.graph import Graph, Node
from policysearch.nn.models import lenet5, mlp, resnet, transformer
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import add, multiply, relu
from policysearch.ops.source import data
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite import matching
from policysearch.rewrite.matching import disjoint, matches
from policysearch.rewrite.patterns import (
    ANYTHING,
    Edge,
    Pattern,
    Wanted,
    block_of,
    chain,
    fan_out,
    node,
)
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_forward, trace_step
from policysearch.values import InputError

LAYERS = ("", "stem", "block1.a", "block1.b", "block2.a")
FORMATS = ("float32", "float16")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A few elementwise nodes that read any nodes before them."""
    b = Builder()
    b.emit(data, attrs={"shape": (2,)}, role="input", name="x")
    for _ in range(draw(st.integers(2, 7))):
        op = draw(st.sampled_from([add, multiply, relu]))
        earlier = st.integers(0, len(b.nodes) - 1)
        inputs = [draw(earlier) for _ in range(1 if op is relu else 2)]
        role = draw(st.sampled_from(["fprop", "dgrad"]))
        b.emit(
            op,
            *inputs,
            layer=draw(st.sampled_from(LAYERS)),
            role=role,
            format=draw(st.sampled_from(FORMATS)),
            attrs={"way": draw(st.integers(0, 1))},
        )
    return b.graph({"out": draw(st.integers(0, len(b.nodes) - 1))})


def wanted_nodes(name: str) -> st.SearchStrategy[Wanted]:
    def either(*values: str) -> st.SearchStrategy[tuple[str, ...]]:
        return st.just(()) | st.just(()) | st.sets(st.sampled_from(values), min_size=1).map(tuple)

    return st.builds(
        Wanted,
        st.just(name),
        either("add", "multiply", "relu"),
        either("elementwise", "source"),
        either("A", "B"),
        st.sampled_from(["", "", r"block\d\.a", ".*"]),
        either("fprop", "dgrad"),
        either(*FORMATS),
        st.sampled_from([(), (), (("way", 0),)]),
        st.sampled_from([False, False, True]),
    )


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    names = [f"n{i}" for i in range(draw(st.integers(1, 4)))]
    edges = []
    for place, name in enumerate(names[1:], 1):
        for _ in range(draw(st.integers(1, 2))):
            other = draw(st.sampled_from(names[:place]))
            first, last = (other, name) if draw(st.integers(0, 3)) else (name, other)
            number = draw(st.sampled_from([None, None, 0, 1]))
            edges.append(Edge(first, last, number, draw(st.sampled_from([False, False, True]))))
    nodes = tuple(draw(wanted_nodes(name)) for name in names)
    return Pattern(nodes, tuple(edges), draw(st.sampled_from([False, False, True])))


TYPES = {"stem": "A", "block1.a": "A", "block1.b": "B", "block2.a": "B"}


def brute_force(graph: Graph, pattern: Pattern) -> list[tuple[int, ...]]:
    """Every tuple of different nodes, each predicate and edge read off its definition."""

    def is_computed_from(low: int, high: int) -> bool:
        return any(i == high or is_computed_from(i, high) for i in graph.nodes[low].inputs)

    def edge_holds(edge: Edge, at: dict[str, int]) -> bool:
        source, target = at[edge.source], graph.nodes[at[edge.target]]
        read = [i for n, i in enumerate(target.inputs) if edge.input in (None, n)]
        through = edge.anything_between
        return any(i == source or (through and is_computed_from(i, source)) for i in read)

    def node_fits(wanted: Wanted, found: Node) -> bool:
        readers = [n for n in graph.nodes if found.id in n.inputs]
        once = len(readers) == 1 and found.id not in dict(graph.outputs).values()
        return all(
            (
                found.op.name in (wanted.ops or (found.op.name,)),
                found.op.kind in (wanted.kinds or (found.op.kind,)),
                found.role in (wanted.roles or (found.role,)),
                found.format in (wanted.formats or (found.format,)),
                not wanted.layer_types or TYPES.get(found.layer) in wanted.layer_types,
                not wanted.layer or re.fullmatch(wanted.layer, found.layer),
                all(found.attributes.get(k) == v for k, v in wanted.attrs),
                once or not wanted.single_user,
            )
        )

    fitting = [[n.id for n in graph.nodes if node_fits(w, n)] for w in pattern.nodes]
    found = []
    for ids in itertools.product(*fitting):
        at = dict(zip(pattern.names, ids, strict=True))
        blocks = {block_of(graph.nodes[i].layer) for i in ids}
        if (
            len(set(ids)) == len(ids)
            and all(edge_holds(edge, at) for edge in pattern.edges)
            and not (pattern.same_block and len(blocks) > 1)
        ):
            found.append(ids)
    return sorted(found)


@settings(max_examples=60, deadline=None)
@given(graphs(), patterns())
def test_matches_are_those_of_brute_force_in_their_order(graph: Graph, pattern: Pattern) -> None:
    found = [match.ids for match in matches(graph, pattern, TYPES)]
    assert found == brute_force(graph, pattern)


def test_many_random_patterns_do_match() -> None:
    """The property above is not one of empty sets."""
    rng = np.random.default_rng(0)
    graph = trace_forward(transformer((4, 8), 3, 8, (16,), 2), 2)
    for _ in range(20):
        first = graph.nodes[rng.integers(len(graph.nodes))]
        for reader in graph.readers()[first.id]:
            pattern = chain(node("a", op=first.op.name), node("b", op=reader.op.name))
            found = [match.ids for match in matches(graph, pattern)]
            assert (first.id, reader.id) in found
            assert found == brute_force(graph, pattern)


def test_a_convolution_and_what_follows_it_is_a_chain() -> None:
    graph = trace_forward(lenet5(), 2)
    pattern = chain(
        node("conv", op="conv2d", layer_type="Conv2d", single_user=True),
        node("bias", op="bias"),
        node("act", kind="elementwise"),
    )
    found = matches(graph, pattern, lenet5().layer_types)
    assert [match["act"].layer for match in found] == ["relu1", "relu2"]
    assert [match["conv"].layer for match in found] == ["conv1", "conv2"]


def test_a_fan_out_binds_different_readers() -> None:
    graph = trace_forward(resnet((3, 8, 8), 4, (4, 8)), 2)
    pattern = fan_out(node("x", op="relu"), node("conv", op="conv2d"), node("add", op="add"))
    # blocks whose shortcut is the input itself
    assert [m["add"].layer for m in matches(graph, pattern)] == [
        "layer1.0.add",
        "layer1.1.add",
        "layer2.1.add",
    ]


def test_a_way_that_failed_from_one_node_is_tried_again_from_another() -> None:
    b = Builder()
    one, two = (b.emit(data, attrs={"shape": (2,)}, role="input", name=name) for name in "ab")
    both, alone = b.emit(add, one, two), b.emit(relu, two)
    graph = b.graph({"x": both, "y": alone})
    pattern = fan_out(node(kind="source"), node(op="add"), node(op="relu"))
    assert [m.ids for m in matches(graph, pattern)] == [(two, both, alone)]


def test_anything_may_lie_between() -> None:
    graph = trace_forward(lenet5(), 2)
    pattern = chain(node("conv", op="conv2d"), ANYTHING, node("flat", op="reshape"))
    assert [m["conv"].layer for m in matches(graph, pattern)] == ["conv1", "conv2"]
    block = chain(
        node("q", layer=r".*\.q", op="matmul"), ANYTHING, node(op="softmax"), same_block=True
    )
    deep = trace_forward(transformer((4, 8), 3, 8, (16, 16), 2), 2)
    assert len(matches(deep, replace(block, same_block=False))) == 3
    assert [m["q"].layer for m in matches(deep, block)] == [
        "block1.attention.q",
        "block2.attention.q",
    ]


def test_formats_and_roles_are_matched_after_the_policy_pass() -> None:
    net = mlp((8, 8, 4))
    step = trace_step(net, "softmax_cross_entropy", Optimizer("sgd"), 4)
    graph = apply_policy(step, preset("mindspore.O2", net.layer_names))
    wide = chain(node("cast", op="cast", format="float32"), node("unscale", op="unscale"))
    found = matches(graph, wide)
    assert {m["unscale"].layer for m in found} == {"fc1", "fc2"}
    assert len(matches(graph, chain(node(role="wgrad", kind="gemm")))) == 2


def test_overlapping_matches_are_kept_in_order_where_they_are_disjoint() -> None:
    b = Builder()
    i = b.emit(data, attrs={"shape": (2,)}, role="input", name="x")
    for _ in range(5):
        i = b.emit(relu, i)
    found = matches(b.graph({"out": i}), chain(node(op="relu"), node(op="relu")))
    assert [m.ids for m in found] == [(1, 2), (2, 3), (3, 4), (4, 5)]
    assert [m.ids for m in disjoint(found)] == [(1, 2), (3, 4)]


def test_the_search_for_a_chain_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder has 2^n ways through it; a chain that ends nowhere tries each edge once."""
    b = Builder()
    i = b.emit(data, attrs={"shape": (2,)}, role="input", name="x")
    rungs = 60
    for _ in range(rungs):
        left, right = b.emit(relu, i), b.emit(relu, i)
        i = b.emit(add, left, right)
    graph = b.graph({"out": i})
    length = 40
    steps = [node(op=("relu", "add")) for _ in range(length)]
    tried = 0

    def counted(*args: object) -> bool:
        nonlocal tried
        tried += 1
        return original(*args)  # type: ignore[arg-type]

    original = matching.Search.joins
    monkeypatch.setattr(matching.Search, "joins", counted)
    assert matches(graph, chain(*steps, node(op="multiply"))) == ()
    edges = sum(len(n.inputs) for n in graph.nodes)
    assert 0 < tried <= edges * length


@pytest.mark.parametrize(
    ("layer", "block"),
    [
        ("conv1", ""),
        ("layers.3", ""),
        ("layer1.0.conv1", "layer1.0"),
        ("layer1.0.downsample.0", "layer1.0"),
        ("block2.attention.q", "block2"),
        ("encoder.layers.11.self_attn.out_proj", "encoder.layers.11"),
        ("head.norm", ""),
    ],
)
def test_the_block_of_a_layer(layer: str, block: str) -> None:
    assert block_of(layer) == block


def test_patterns_that_say_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="role: 'fwd'; expected one of input, fprop"):
        node(role="fwd")
    with pytest.raises(InputError, match=r"layer: '\('.*expected a regular expression"):
        node(layer="(")
    with pytest.raises(InputError, match="node 'b' hangs alone"):
        Pattern((node("a"), node("b")))
    with pytest.raises(InputError, match="different names"):
        chain(node("a"), node("a"))
    with pytest.raises(InputError, match="expected one of a, b"):
        matches(trace_forward(lenet5(), 2), chain(node("a"), node("b")))[0]["c"]
    with pytest.raises(InputError, match="begins or ends with anything"):
        chain(node("a"), ANYTHING)
