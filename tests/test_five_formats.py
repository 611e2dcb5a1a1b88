"""A layer whose five formats all differ: pass, emulator, price and export keep them apart."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.cost.price import step_price
from policysearch.emulator.compile import compile_graph
from policysearch.export.torch import export, losses
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.nn.models import lenet5, mlp
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step

# No two have the same mantissa, so that a value tells which of them it was rounded to.
FORMATS = LayerPolicy("float16", "bfloat16", "e6m9", "e7m8", "e4m11")
BITS = {"float16": 10, "bfloat16": 7, "e6m9": 9, "e7m8": 8, "e4m11": 11, "float32": 23}
NETS = {"mlp": mlp((16, 12, 8, 4)), "lenet5": lenet5(size=16, classes=4)}
MIDDLE = {"mlp": "fc2", "lenet5": "conv2"}


def policy_of(net: str, layer: LayerPolicy = FORMATS) -> Policy:
    """Return a policy with one such layer; the others are float32."""
    others = preset("bfloat16", NETS[net].layer_names)
    plain = {name: LayerPolicy() for name, _ in others.layers}
    return others.with_layers({**plain, MIDDLE[net]: layer})


def graph_of(net: str, policy: Policy) -> Graph:
    step = trace_step(NETS[net], "softmax_cross_entropy", Optimizer("momentum"), 8)
    return apply_policy(step, policy)


def products(graph: Graph, net: str) -> dict[str, Node]:
    """Return the products of the middle layer by role."""
    found = [n for n in graph.nodes if n.layer == MIDDLE[net] and n.op.kind == "gemm"]
    assert sorted(node.role for node in found) == ["dgrad", "fprop", "wgrad"]
    return {node.role: node for node in found}


@pytest.mark.parametrize("net", NETS)
def test_the_pass_puts_each_format_where_it_belongs(net: str) -> None:
    graph = graph_of(net, policy_of(net))
    by_role = products(graph, net)
    operands = {
        role: [value.format for value in graph.inputs_of(node)] for role, node in by_role.items()
    }
    assert operands["fprop"] == [FORMATS.compute] * 2
    assert sorted(operands["dgrad"]) == sorted(operands["wgrad"]) == ["e6m9", "float16"]
    assert by_role["dgrad"].format == FORMATS.dgrad == FORMATS.grad
    assert by_role["wgrad"].format == FORMATS.wgrad
    (bias,) = (n for n in graph.nodes if n.op.name == "bias" and n.layer == MIDDLE[net])
    assert bias.format == FORMATS.output and by_role["fprop"].fused
    # The weight passes its storage format on the way to the operand's.
    casts = [n for n in graph.nodes if n.op.name == "cast" and n.layer == MIDDLE[net]]
    read = [n for n in casts if graph.inputs_of(n)[0].name == f"{MIDDLE[net]}.weight"]
    assert [node.format for node in read] == [FORMATS.param]
    assert FORMATS.compute in {n.format for n in casts if graph.inputs_of(n)[0] == read[0]}


@pytest.mark.parametrize("net", NETS)
def test_without_masters_parameters_are_stored_in_their_format(net: str) -> None:
    graph = graph_of(net, replace(policy_of(net), master_weights=False))
    stored = {n.name: n.format for n in graph.nodes if n.op.name == "parameter"}
    middle = {name for name in stored if name.startswith(f"{MIDDLE[net]}.")}
    assert {stored[name] for name in middle} == {FORMATS.param}
    assert {stored[name] for name in stored.keys() - middle} == {"float32"}
    kept = {new: old for old, new in graph.updates}
    for node in graph.nodes:
        if node.id in kept:
            assert node.format == graph.nodes[kept[node.id]].format


def significant_bits(values: FloatArray) -> int:
    """Return the most mantissa bits, behind the leading one, that a normal value of these has."""
    normal = values[np.abs(values) > 2.0**-10]
    assert normal.size
    whole = np.abs(np.frexp(normal)[0].astype(np.float64) * 2.0**24).astype(np.int64)
    trailing = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return int(23 - trailing.min())


@pytest.mark.parametrize("net", NETS)
def test_the_emulator_rounds_each_value_to_its_format(net: str) -> None:
    graph = graph_of(net, replace(policy_of(net), master_weights=True))
    seen: dict[int, FloatArray] = {}

    def observe(node: Node, before: FloatArray, after: FloatArray) -> None:
        seen[node.id] = after.copy()

    step = compile_graph(graph, seed=1, observer=observe)
    rng = np.random.default_rng(0)
    for name, value in NETS[net].init(rng).items():
        step.arrays[name][...] = value
    step.arrays["images"][...] = rng.standard_normal(step.arrays["images"].shape)
    step.arrays[TARGETS][...] = np.eye(4)[rng.integers(0, 4, 8)]
    for name, scalar in ((LOSS_SCALE, 64), (INVERSE_SCALE, 1 / 64), (LEARNING_RATE, 0.1)):
        step.arrays[name][...] = scalar
    step.forward_backward()
    step.apply_updates()
    by_role = products(graph, net)
    (bias,) = (n for n in graph.nodes if n.op.name == "bias" and n.layer == MIDDLE[net])
    # Exactly as many bits as the format has: fewer would be another's rounding.
    assert significant_bits(seen[bias.id]) == BITS[FORMATS.output]
    assert significant_bits(seen[by_role["dgrad"].id]) == BITS[FORMATS.dgrad]
    assert significant_bits(seen[by_role["wgrad"].id]) == BITS[FORMATS.wgrad]
    for node in by_role.values():
        for operand in graph.inputs_of(node):
            assert significant_bits(seen[operand.id]) <= BITS[operand.format]


def seconds_and_bytes(layer: LayerPolicy, masters: bool) -> tuple[float, int]:
    policy = replace(policy_of("mlp", layer), master_weights=masters)
    graph = graph_of("mlp", policy)
    found = step_price(graph, "A100-SXM4-80GB", "torch.eager")
    return found.time.kernel_seconds, found.memory.peak_bytes


@pytest.mark.parametrize("field", ["compute", "output", "grad", "wgrad", "param"])
def test_each_of_the_five_is_priced(field: str) -> None:
    """A format that is widened shows in what is priced."""
    own = seconds_and_bytes(FORMATS, masters=field != "param")
    widened: dict[str, Any] = {field: "float32"}
    wider = seconds_and_bytes(replace(FORMATS, **widened), masters=field != "param")
    assert wider != own


def table(text: str, name: str) -> dict[str, tuple[str, str, str | None]]:
    """Return the value of a table of the exported file, which torch is not needed for."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            found: dict[str, tuple[str, str, str | None]] = ast.literal_eval(node.value)
            return found
    raise AssertionError(name)


@pytest.mark.parametrize("net", NETS)
def test_the_exported_file_names_what_torch_has_and_the_losses_the_rest(net: str) -> None:
    model, policy = NETS[net], policy_of(net)
    layers = table(export(policy, model), "LAYERS")
    assert layers.keys() == {name for name in model.layer_names if model.parameters_of(name)}
    assert layers[MIDDLE[net]] == ("float16", "bfloat16", None)
    assert {row for name, row in layers.items() if name != MIDDLE[net]} == {
        ("float32", "float32", None)
    }
    said = [line for line in losses(policy, model) if line.startswith(f"layer {MIDDLE[net]}:")]
    for stated in (f"{FORMATS.grad} (operand)", f"{FORMATS.wgrad} (weight)", FORMATS.param):
        assert sum(stated in line for line in said) == 1, said


@pytest.mark.parametrize("net", NETS)
def test_the_exported_file_stores_what_has_no_masters(net: str) -> None:
    layer = replace(FORMATS, param="bfloat16", output="float32")
    policy = replace(policy_of(net, layer), master_weights=False)
    layers = table(export(policy, NETS[net]), "LAYERS")
    assert layers[MIDDLE[net]] == ("float16", "float32", "bfloat16")


def test_a_storage_format_that_torch_lacks_is_said_and_left_out() -> None:
    policy = replace(policy_of("mlp"), master_weights=False)
    layers = table(export(policy, NETS["mlp"]), "LAYERS")
    assert {stored for _, _, stored in layers.values()} == {None}
    said = f"layer fc2: parameters are stored in float32, not {FORMATS.param}"
    assert [line for line in losses(policy, NETS["mlp"]) if "stored in" in line] == [said]


def test_the_five_formats_differ() -> None:
    five = (FORMATS.compute, FORMATS.output, FORMATS.grad, FORMATS.wgrad, FORMATS.param)
    assert len(set(five)) == 5
    assert all(format_named(name).bits >= 16 for name in five)
