"""One sweep rebuilds a graph by ordered rules; the policy pass is a list of such rules."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from policysearch.formats import Rounding
from policysearch.graph import Graph, Node
from policysearch.nn.models import MODELS, lenet5, mlp
from policysearch.ops.activations import tanh
from policysearch.ops.builder import Builder, changed_node, new_node
from policysearch.ops.elementwise import add, relu
from policysearch.ops.source import data
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy
from policysearch.policy.presets import PRESETS, preset
from policysearch.rewrite.casting import Casting
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.matching import Match
from policysearch.rewrite.patterns import Pattern, Wanted, chain, node
from policysearch.rewrite.policy_pass import apply_policy, policy_pass, policy_rules
from policysearch.rewrite.rules import Conversion, apply_rule, conversion, rule, sweep
from policysearch.train.step import trace_step
from policysearch.values import InputError
from tests.rewritten_steps import LOSS, feeds, run

NETS = {
    "lenet5": lenet5(),
    "mlp": mlp((16, 8, 8, 10)),
    "transformer": MODELS["transformer"]((4, 8), 5, "relu", (8, 16, 16)),
    "resnet": MODELS["resnet"]((3, 8, 8), 4, "relu", (4, 8)),
}
STEPS = {name: trace_step(net, LOSS, Optimizer("momentum"), 4) for name, net in NETS.items()}


def small_graph() -> Graph:
    """x -> relu -> relu -> add with x."""
    b = Builder()
    x = b.emit(data, attrs={"shape": (2,)}, role="input", name="x")
    first = b.emit(relu, x, layer="a")
    second = b.emit(relu, first, layer="b")
    return b.graph({"out": b.emit(add, second, x, layer="c")})


def swept(graph: Graph, *rules: Conversion) -> tuple[list[str], dict[str, int]]:
    """Return the ops of the rebuilt graph and how many nodes each rule took."""
    b, new = Builder(), dict[int, int]()
    keep = Conversion(
        "keep", Pattern((node(),)), lambda b, n: b.copy(n, [new[i] for i in n.inputs])
    )
    counts = dict(sweep(graph, (*rules, keep), b, new))
    assert set(new) == {n.id for n in graph.nodes}
    return [n.op.name for n in b.nodes], counts


def test_the_first_rule_that_fits_says_what_a_node_becomes() -> None:
    @conversion(node(op="relu"))
    def smooth(b: Builder, act: Node) -> int:
        return b.emit(tanh, act.inputs[0])

    @conversion(node(layer="b"), name="refuses")
    def never(b: Builder, act: Node) -> None:
        assert act.layer == "b"

    assert swept(small_graph(), smooth) == (
        ["data", "tanh", "tanh", "add"],
        {"smooth": 2, "keep": 2},
    )
    assert swept(small_graph(), never, smooth)[1] == {"refuses": 0, "smooth": 2, "keep": 2}


def test_a_pattern_looks_ahead_from_its_first_node() -> None:
    pairs = []

    @conversion(chain(node("first", op="relu"), node("second", op="relu")))
    def doubled(b: Builder, first: Node, second: Node) -> int:
        pairs.append((first.layer, second.layer))
        return b.emit(tanh, first.inputs[0])

    assert swept(small_graph(), doubled)[0] == ["data", "tanh", "relu", "add"]
    assert pairs == [("a", "b")]


def test_a_node_that_no_rule_takes_is_an_error_that_names_it() -> None:
    def copied(b: Builder, n: Node) -> int:
        return b.copy(n, n.inputs)

    only = Conversion("only relu", Pattern((node(op=("data", "relu")),)), copied)
    with pytest.raises(InputError, match=r"node \[3\] add of layer 'c': no rule takes it.*only"):
        sweep(small_graph(), [only], Builder(), {})


@pytest.mark.parametrize("name", PRESETS)
def test_the_rules_of_a_policy_take_every_node_once(name: str) -> None:
    for net, step in STEPS.items():
        policy = preset(name, NETS[net].layer_names)
        made = policy_pass(step, policy)
        assert sum(count for _, count in made.by_rule) == len(step.nodes) == made.matched
        taken, low = dict(made.by_rule), set(policy.low_precision_ops)
        gemms = sum(n.op.kind == "gemm" and n.source in low for n in step.nodes)
        assert sum(count for rule, count in taken.items() if "product" in rule) == gemms
        sums = sum("gradient_of" in n.attributes for n in step.nodes)
        assert taken["sum of gradients"] == sums
        assert taken["op in no list"] == 0


def test_products_are_scaled_by_rules_of_their_own() -> None:
    model = NETS["mlp"]
    plain = policy_rules(preset("float16", model.layer_names))
    assert not any("scaled" in rule.name for rule in plain)
    taken = dict(policy_pass(STEPS["mlp"], preset("te.delayed", model.layer_names)).by_rule)
    found = {name: count for name, count in taken.items() if "scaled" in name}
    assert found == {
        "scaled product with its bias": 3,
        "scaled product": 0,
        "scaled product of a gradient": 5,
    }


def test_a_rule_of_the_users_own_comes_before_those_of_the_policy() -> None:
    @conversion(node(op="relu", layer="relu2", role="fprop"))
    def wide(at: Casting, act: Node) -> int:
        return at.forward(act, at.emit(act, at.operands(act, "float32")), "float32")

    def formats(policy: Policy, *rules: Conversion) -> dict[str, str]:
        graph = apply_policy(STEPS["lenet5"], policy, rules)
        found = [n for n in graph.nodes if n.op.name in ("relu", "relu_grad")]
        return {f"{n.layer} {n.op.name}": n.format for n in found}

    policy = preset("mindspore.O3", NETS["lenet5"].layer_names)
    before, after = formats(policy), formats(policy, wide)
    assert set(before.values()) == {"float16"}
    assert after == {**before, "relu2 relu": "float32"}


def test_a_changed_node_is_what_replace_makes() -> None:
    given = STEPS["lenet5"].nodes[40]
    others: dict[str, Any] = {
        "id": 7,
        "op": relu,
        "inputs": (1, 2),
        "shape": (5,),
        "role": "update",
        "layer": "x",
        "name": "y",
        "source": "z",
        "of": 3,
        "format": "float16",
        "accumulator": "chunked:64:float16",
        "rounding": Rounding("stochastic"),
        "fused": True,
        "attrs": (("a", 1),),
        "line": "net.py:3",
    }
    assert list(others) == [f.name for f in fields(Node)]
    for name, value in others.items():
        assert getattr(given, name) != value
        made = changed_node(given, **{name: value})
        assert getattr(made, name) == value  # a line is not compared
        assert made == replace(given, **{name: value}) and type(made) is Node
        assert hash(made) == hash(replace(given, **{name: value}))
    assert new_node(*others.values()) == Node(*others.values())
    first = new_node(3, relu, (1,), (2,), "dgrad")
    assert first == Node(3, relu, (1,), (2,), "dgrad") and type(first) is Node
    with pytest.raises(AttributeError):
        changed_node(given, formats="float16")


def test_every_node_may_be_redirected_and_redirected_again() -> None:
    @rule(Pattern((node("made", kind=("gemm", "elementwise", "reduce")),)), stage="formats")
    def twice(edit: Editor, match: Match) -> None:
        made = match["made"]
        first = edit.copy(made, edit.inputs(made))
        edit.redirect(made, first, same_value=True)
        edit.begin()
        edit.redirect(edit.nodes[first], edit.copy(made, edit.inputs(made)), same_value=True)

    graph = apply_policy(STEPS["mlp"], preset("float16", NETS["mlp"].layer_names))
    done = apply_rule(graph, twice)
    assert done.matched > 50 and len(done.after.nodes) == len(graph.nodes)
    ours, theirs = (run(each, feeds(graph)) for each in (done.after, graph))
    for name, _ in graph.outputs:
        np.testing.assert_array_equal(ours.value(name), theirs.value(name))


def test_what_is_written_of_an_old_pattern_stays() -> None:
    """Results of studies under rules are stored under it."""
    assert repr(Wanted("act", ("relu",))) == (
        "Wanted(name='act', ops=('relu',), kinds=(), layer_types=(), layer='', roles=(), "
        "formats=(), attrs=(), single_user=False)"
    )
    assert "sources=('relu',)" in repr(node(source="relu"))
