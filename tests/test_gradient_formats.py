"""Gradients follow the list their forward op is in, as autograd would have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from policysearch.formats import Rounding
from policysearch.graph import Graph, Node
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.ops.catalogue import FORWARD_OPS, LOSS_OPS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, RoleRounding, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step

NET = mlp((8, 6, 4), activation="tanh")
STEP = trace_step(NET, "softmax_cross_entropy", Optimizer("momentum"), 4)
ACTIVATION = next(name for name in NET.layer_names if name.startswith("tanh"))
FIRST, LAST = (name for name in NET.layer_names if name.startswith("fc"))
List = Literal["low", "fp32", "promote"]


def policy_of(place: List, layers: dict[str, LayerPolicy], **changes: object) -> Policy:
    """Return a policy with products low and tanh in the given list; layers default to float32."""
    lists: dict[str, list[str]] = {"low": ["matmul", "bias"], "fp32": list(LOSS_OPS), "promote": []}
    lists[place].append("tanh")
    placed = {op for ops in lists.values() for op in ops}
    lists["promote"] += [op for op in FORWARD_OPS if op not in placed]
    policy = Policy(
        "test",
        tuple((name, layers.get(name, LayerPolicy())) for name in NET.layer_names),
        low_precision_ops=tuple(lists["low"]),
        fp32_ops=tuple(lists["fp32"]),
        promote_ops=tuple(lists["promote"]),
        loss_scale=LossScale("fixed", 8.0),
    )
    return replace(policy, **changes)  # type: ignore[arg-type]


def gradient_of_tanh(graph: Graph) -> Node:
    (node,) = (
        n
        for n in graph.nodes
        if n.layer == ACTIVATION and n.role == "dgrad" and n.op.name != "cast"
    )
    return node


FLOAT16, BFLOAT16 = uniform_layer("float16"), uniform_layer("bfloat16")


@pytest.mark.parametrize(
    ("place", "last", "expected"),
    [
        # Its layer's own format, whatever arrives.
        ("low", BFLOAT16, "e6m9"),
        ("low", LayerPolicy(), "e6m9"),
        # float32, whatever arrives.
        ("fp32", BFLOAT16, "float32"),
        ("fp32", FLOAT16, "float32"),
        # That of what tanh was given and gave out, whatever arrives: autograd hands it that.
        ("promote", BFLOAT16, "float16"),
        ("promote", FLOAT16, "float16"),
        ("promote", LayerPolicy(), "float16"),
    ],
)
def test_the_gradient_of_an_op_follows_its_list(
    place: List, last: LayerPolicy, expected: str
) -> None:
    own = LayerPolicy("float16", "float16", "e6m9", "e6m9")
    layers = {FIRST: FLOAT16, ACTIVATION: own, LAST: last}
    graph = apply_policy(STEP, policy_of(place, layers))
    node = gradient_of_tanh(graph)
    assert node.format == expected
    (arriving,) = (i for i in graph.inputs_of(node) if i.role == "dgrad")
    assert arriving.format == expected
    forward = next(n for n in graph.nodes if n.layer == ACTIVATION and n.op.name == "tanh")
    assert forward.format == ("float32" if place == "fp32" else "float16")


def test_what_an_op_in_float32_gives_is_cast_where_it_is_read() -> None:
    graph = apply_policy(STEP, policy_of("fp32", dict.fromkeys(NET.layer_names, FLOAT16)))
    (product,) = (
        n for n in graph.nodes if n.layer == LAST and n.op.name == "matmul" and n.role == "fprop"
    )
    assert {i.format for i in graph.inputs_of(product)} == {"float16"}
    forward = next(n for n in graph.nodes if n.layer == ACTIVATION and n.op.name == "tanh")
    (operand,) = graph.inputs_of(forward)
    assert operand.op.name == "cast" and operand.format == "float32"
    assert graph.inputs_of(operand)[0].format == "float16"


def test_each_role_rounds_in_its_own_way() -> None:
    """Casts and results alike; what feeds a role is rounded as that role."""
    rounding = RoleRounding(
        fprop=Rounding("toward_zero"),
        dgrad=Rounding("nearest_away"),
        wgrad=Rounding("stochastic"),
        update=Rounding("nearest_even", "saturate"),
    )
    layers = dict.fromkeys(NET.layer_names, FLOAT16)
    graph = apply_policy(STEP, policy_of("low", layers, rounding=rounding))
    seen = {}
    for node in graph.nodes:
        if node.op.kind != "source":
            wanted = getattr(rounding, node.role)
            assert node.rounding == wanted, node
            seen[node.role] = wanted
    assert seen.keys() == {"fprop", "dgrad", "wgrad", "update"}
    for node in graph.nodes:
        if node.op.kind == "source":
            assert node.rounding == Rounding()


def test_a_parameter_stored_as_narrow_as_it_is_read_is_scaled_from_its_master() -> None:
    """The scaled copy is the storage: no unscaled cast to eight bits comes before it."""
    narrow = uniform_layer("float8_e4m3fn")
    for param, casts in (("float8_e4m3fn", 0), ("float16", 1), ("float8_e5m2", 1)):
        layers = {FIRST: replace(narrow, param=param)}
        graph = apply_policy(STEP, policy_of("low", layers, scaling=Scaling("current")))
        weight = next(n for n in graph.nodes if n.name == f"{FIRST}.weight")
        direct = [n for n in graph.nodes if weight.id in n.inputs and n.role != "update"]
        assert sum(n.op.name == "cast" for n in direct) == casts
        assert casts or {n.op.name for n in direct} == {"amax", "scaled_cast"}


def test_narrow_is_less_than_sixteen_bits() -> None:
    """A format of exactly 16 bits holds its values as they are and is not scaled."""
    for name, scaled in (("e6m9", False), ("e5m9", True), ("float16", False)):
        layers = {FIRST: LayerPolicy(name, "bfloat16", name, "bfloat16")}
        graph = apply_policy(STEP, policy_of("low", layers, scaling=Scaling("current")))
        found = [n for n in graph.nodes if n.op.name == "scaled_cast"]
        assert bool(found) == scaled, name


def test_every_scaled_operand_has_states_of_its_own() -> None:
    """Attention multiplies several tensors of one layer; a state belongs to one of them."""
    net = transformer((3, 4), 4, 8, (12,), heads=2)
    step = trace_step(net, "softmax_cross_entropy", Optimizer("sgd"), 2)
    policy = preset("te.delayed", net.layer_names)
    graph = apply_policy(step, policy)
    scaled = [n for n in graph.nodes if n.op.name == "scaled_cast"]
    states = [n.name for n in graph.nodes if n.op.name == "state"]
    assert len(states) == 2 * len(scaled) == len(set(states))
    bases = {name.rpartition(".")[0] for name in states}
    assert {f"{name}.{kind}" for name in bases for kind in ("amax_history", "scale")} == set(states)
    several = {name for name in bases if f"{name}2" in bases}
    assert several and not any(name.endswith("1") and name[:-1] in bases for name in bases)


def test_a_gradient_is_float32_behind_an_op_in_float32() -> None:
    """The pool reads what relu gave in float32, so its gradient is float32 too, as autograd's."""
    net = lenet5(size=16, classes=4)
    step = trace_step(net, "softmax_cross_entropy", Optimizer("sgd"), 2)
    policy = preset("bfloat16", net.layer_names)
    rest = [op for op in policy.low_precision_ops if op not in ("relu", "max_pool")]
    policy = replace(
        policy,
        low_precision_ops=tuple(rest),
        fp32_ops=(*policy.fp32_ops, "relu"),
        promote_ops=("max_pool",),
    )
    graph = apply_policy(step, policy)
    for source in ("relu", "max_pool"):
        own = [n for n in graph.nodes if n.source == source and n.layer in ("relu1", "pool1")]
        made = [n for n in own if n.role == "dgrad" and n.op.name != "cast"]
        assert made and {n.format for n in made} == {"float32"}, source
