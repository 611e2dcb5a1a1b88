"""What the policy pass leaves as it is: statistics, indices, masks and the user's own casts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from policysearch.graph import Graph, Node
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import LOSS_SCALE, data, parameter
from policysearch.ops.update import scale_loss
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import fast_ways
from tests.emulated_steps import assert_gives_the_bits_of_the_reference

HALF = preset("torch.autocast.float16", ("conv", "norm", "table"))


def _source(b: Builder, name: str, *shape: int, layer: str = "", op: str = "parameter") -> int:
    kind = {"parameter": parameter, "data": data}[op]
    return b.emit(kind, attrs={"shape": shape}, role="input", name=name, layer=layer)


def _finished(b: Builder, y: int, wanted: Mapping[str, int], policy: Policy) -> Graph:
    """Return the graph under `policy`, with the gradients of `wanted` for a gradient of ones."""
    start = _source(b, LOSS_SCALE, *b.shape(y), op="data")
    grads = backward(b, y, start, list(wanted.values()), add)
    outputs = {name: grads[i] for name, i in wanted.items()}
    return apply_policy(b.graph({"y": y} | outputs), policy)


def _norm(policy: Policy, *, training: bool = True) -> Graph:
    b = Builder()
    x = _source(b, "x", 4, 2, 5, 5, op="data")
    weights = _source(b, "conv.weight", 3, 2, 3, 3, layer="conv")
    scale, bias = (_source(b, f"norm.{name}", 3, layer="norm") for name in ("weight", "bias"))
    with b.scope(layer="conv"):
        image = b.emit(OPS["conv2d"], x, weights)
    with b.scope(layer="norm"):
        mean, variance = (b.emit(OPS[f"batch_{name}"], image) for name in ("mean", "variance"))
        attrs = {"training": training}
        y = b.emit(OPS["batch_norm"], image, mean, variance, scale, bias, attrs=attrs)
    wanted = {"conv.weight": weights, "norm.weight": scale, "norm.bias": bias}
    return _finished(b, y, wanted, policy)


def _named(graph: Graph, op: str) -> Node:
    (found,) = [node for node in graph.nodes if node.op.name == op]
    return found


def test_batch_norm_under_autocast_keeps_its_format_and_float32_statistics() -> None:
    graph = _norm(HALF)
    norm = _named(graph, "batch_norm")
    assert norm.format == "float16"
    assert [i.format for i in graph.inputs_of(norm)] == ["float16"] + ["float32"] * 4
    for name in ("batch_mean", "batch_variance"):
        node = _named(graph, name)
        assert node.format == "float32"
        assert [i.op.name for i in graph.inputs_of(node)] == ["conv2d"]
    casts = [n for n in graph.nodes if n.op.name == "cast" and n.role == "fprop"]
    assert {n.layer for n in casts} == {"conv"}


def test_gradients_of_a_pinned_parameter_are_its_own_format() -> None:
    graph = _norm(HALF)
    assert _named(graph, "batch_norm_grad").format == "float16"
    assert _named(graph, "batch_norm_weight_grad").format == "float32"
    assert _named(graph, "bias_grad").format == "float32"
    read = [i.format for i in graph.inputs_of(_named(graph, "batch_norm_grad"))]
    assert read == ["float16", "float16", "float32", "float32", "float32"]


def test_batch_norm_in_a_float32_list_has_its_input_cast() -> None:
    graph = _norm(preset("mindspore.O2", ("conv", "norm", "table")))
    norm = _named(graph, "batch_norm")
    assert norm.format == "float32"
    assert graph.inputs_of(norm)[0].op.name == "cast"
    assert _named(graph, "batch_norm_grad").format == "float32"


@pytest.mark.parametrize("name", ["torch.autocast.float16", "mindspore.O3", "apex.O2", "bfloat16"])
def test_batch_norm_runs_alike_in_every_way(name: str) -> None:
    graph = _norm(preset(name, ("conv", "norm", "table")))
    rng = np.random.default_rng(0)
    start = {
        node.name: rng.uniform(0.5, 2.0, node.shape).astype(np.float32)
        for node in graph.nodes
        if node.op.kind == "source"
    }
    for fast in fast_ways():
        assert_gives_the_bits_of_the_reference(graph, start, fast)


def _looked_up(policy: Policy) -> Graph:
    b = Builder()
    table = _source(b, "table.weight", 7, 3, layer="table")
    numbers = _source(b, "numbers", 2, 5, op="data")
    with b.scope(layer="table"):
        y = b.emit(OPS["embedding"], table, numbers)
    return _finished(b, y, {"table.weight": table}, policy)


@pytest.mark.parametrize("name", ["torch.autocast.float16", "mindspore.O3", "bfloat16", "float8"])
def test_indices_are_never_rounded(name: str) -> None:
    graph = _looked_up(preset(name, ("conv", "norm", "table")))
    for op in ("embedding", "embedding_grad"):
        read = graph.inputs_of(_named(graph, op))[1]
        assert (read.name, read.format) == ("numbers", "float32")


def test_indices_do_not_widen_the_rows_they_choose() -> None:
    graph = _looked_up(preset("apex.O3", ("conv", "norm", "table")))
    assert _named(graph, "embedding").format == "float16"
    half = HALF.with_layers({"table": uniform_layer("float16", param="float16")})
    graph = _looked_up(replace(half, master_weights=False))
    assert _named(graph, "embedding").format == "float16"
    assert _named(graph, "embedding_grad").format == "float16"


def _cast_by_the_user(policy: Policy, wanted: str) -> Graph:
    """x.float() of a product, squared, and back in the format of the product's bias."""
    b = Builder()
    x = _source(b, "x", 4, 2, op="data")
    weight = _source(b, "conv.weight", 2, 3, layer="conv")
    with b.scope(layer="conv"):
        made = b.emit(OPS["matmul"], x, weight)
    with b.scope(layer="norm"):
        wide = b.emit(OPS["pinned_cast"], made, attrs={"format": wanted})
        y = b.emit(OPS["multiply"], wide, wide)
    return _finished(b, y, {"conv.weight": weight}, policy)


@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["torch.autocast.float16", "mindspore.O1", "mindspore.auto"])
def test_a_cast_of_the_users_own_stays(name: str, wanted: str) -> None:
    graph = _cast_by_the_user(preset(name, ("conv", "norm", "table")), wanted)
    pinned = _named(graph, "pinned_cast")
    assert pinned.format == wanted
    assert graph.inputs_of(pinned)[0].op.name == "matmul"
    if name != "mindspore.O1":  # which has products of values in float32
        square = next(n for n in graph.nodes if n.op.name == "multiply")
        assert square.format == wanted
    products = [n for n in graph.nodes if n.op.name == "matmul"]
    assert [n.role for n in products] == ["fprop", "wgrad"]
    assert graph.inputs_of(products[1])[1].format == "float16"


def test_no_list_holds_a_cast() -> None:
    assert not {"cast", "pinned_cast", "scaled_cast", scale_loss.name} & set(FORWARD_OPS)


def test_two_ops_of_one_name_in_a_layer_keep_their_own_formats() -> None:
    """As a module's function may square a float16 value, and then one in float32."""
    b = Builder()
    x, weight = _source(b, "x", 4, 2, op="data"), _source(b, "conv.weight", 2, 3, layer="conv")
    with b.scope(layer="conv"):
        made = b.emit(OPS["matmul"], x, weight)
    with b.scope(layer="norm"):
        square = b.emit(OPS["multiply"], made, b.emit(OPS["relu"], made))
        wide = b.emit(OPS["pinned_cast"], square, attrs={"format": "float32"})
        y = b.emit(OPS["multiply"], wide, b.emit(OPS["relu"], wide))
    graph = _finished(b, y, {"conv.weight": weight}, HALF)
    products = [n for n in graph.nodes if n.op.name == "multiply"]
    formats = [n.format for n in products]
    assert formats == ["float16", "float32", "float32", "float32", "float16", "float16"]
    for node in products:
        assert {i.format for i in graph.inputs_of(node)} == {node.format}
