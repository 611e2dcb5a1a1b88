"""The printout of a policy graph: the seven steps point at nodes of the right kind."""

from __future__ import annotations

import dataclasses

import pytest

from policysearch.graph import Graph
from policysearch.nn.models import mlp
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.presets import PRESETS, preset
from policysearch.report.explain import STEPS, explain, steps_of
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step

MODEL = mlp((6, 5, 3))


def step_graph(policy: Policy) -> Graph:
    graph = trace_step(MODEL, "softmax_cross_entropy", Optimizer(), 4)
    return apply_policy(graph, policy)


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("step ")]


def test_every_step_of_mixed_precision_training_is_there() -> None:
    policy = preset("apex.O2", MODEL.layer_names)
    graph = step_graph(policy)
    steps = steps_of(graph, policy)
    assert [step.number for step in steps] == [1, 2, 3, 4, 5, 6, 7]
    nodes = [[graph.nodes[i] for i in step.node_ids] for step in steps]
    assert {(n.op.name, n.format) for n in nodes[0]} == {("parameter", "float32")}
    assert len(nodes[0]) == 4
    assert {(n.op.name, n.role, n.format) for n in nodes[1]} == {("cast", "fprop", "float16")}
    assert {i for n in nodes[1] for i in n.inputs} >= set(steps[0].node_ids)
    assert [(n.op.name, n.format) for n in nodes[2]] == [("softmax_cross_entropy", "float32")]
    assert [n.op.name for n in nodes[3]] == ["scale_loss"]
    assert {(n.op.name, n.format) for n in nodes[4]} == {("cast", "float32")}
    assert {graph.nodes[n.inputs[0]].role for n in nodes[4]} == {"wgrad"}
    assert {n.op.name for n in nodes[5]} == {"unscale"} and len(nodes[5]) == 4
    assert {i for n in nodes[5] for i in n.inputs} >= set(steps[4].node_ids)
    assert [n.op.name for n in nodes[6]] == ["all_finite", *["sgd_step"] * 4]
    assert set(nodes[6][0].inputs) == set(steps[5].node_ids)


@pytest.mark.parametrize("name", PRESETS)
def test_every_node_and_step_has_a_line(name: str) -> None:
    policy = preset(name, MODEL.layer_names)
    graph = step_graph(policy)
    text = explain(graph, policy)
    assert [line.split(": ")[1] for line in lines(text)] == list(STEPS)
    table = [line for line in text.splitlines() if line[:1].isdigit()][: len(graph.nodes)]
    assert [int(line.split()[0]) for line in table] == [node.id for node in graph.nodes]
    casts = sum(node.op.converts for node in graph.nodes)
    assert (casts > 0) == any(layer.compute != "float32" for _, layer in policy.layers)
    assert ("no layer runs in low precision" in text) == (casts == 0)
    assert sum(" -> " in line for line in table) == casts
    assert f"{len(graph.nodes)} nodes, {casts} casts" in text


@pytest.mark.parametrize(
    "name", ["mindspore.O2.fixed128", "mindspore.O1.fixed128", "mindspore.O1.dynamic", "float32"]
)
def test_levels_with_a_loss_scale_have_no_unexplained_gap(name: str) -> None:
    policy = preset(name, MODEL.layer_names)
    missing = [step.number for step in steps_of(step_graph(policy), policy) if step.missing]
    assert missing == ([2, 4, 5, 6] if name == "float32" else [])


def test_without_masters_and_scale_the_steps_say_so() -> None:
    policy = preset("apex.O3", MODEL.layer_names)
    said = lines(explain(step_graph(policy), policy))
    assert said[0].endswith("none (the policy has no float32 master weights)")
    assert said[3].endswith("none (the policy has no loss scale)")
    assert said[5].endswith("none (the policy has no loss scale)")
    assert "no check, every step is taken" in said[6]


def test_a_gradient_reduced_in_low_precision_is_still_found() -> None:
    policy = preset("mindspore.O2", MODEL.layer_names)
    reduced = dataclasses.replace(policy, all_reduce="bfloat16")
    graph = step_graph(reduced)
    found = [graph.nodes[i] for i in steps_of(graph, reduced)[4].node_ids]
    assert len(found) == 4 and {n.format for n in found} == {"float32"}
    assert {graph.nodes[n.inputs[0]].format for n in found} == {"bfloat16"}


def test_a_float32_layer_shows_no_cast_of_its_weights() -> None:
    policy = preset("mindspore.O3", MODEL.layer_names).with_layers({"fc2": LayerPolicy()})
    graph = step_graph(policy)
    casts = [graph.nodes[i] for i in steps_of(graph, policy)[1].node_ids]
    read = {graph.nodes[n.inputs[0]].name for n in casts}
    assert "fc1.weight" in read and "fc2.weight" not in read


def test_lines_of_the_users_file_stand_beside_nodes_where_they_are_known() -> None:
    policy = preset("float16", MODEL.layer_names)
    graph = step_graph(policy)
    assert "your line" not in explain(graph, policy)
    first = next(node for node in graph.nodes if node.op.name == "matmul")
    nodes = tuple(dataclasses.replace(n, line="net.py:7") if n is first else n for n in graph.nodes)
    known = dataclasses.replace(graph, nodes=nodes)
    assert known == graph  # no part of what the step means
    (row,) = (line for line in explain(known, policy).splitlines() if "net.py:7" in line)
    assert row.split()[0] == str(first.id)
