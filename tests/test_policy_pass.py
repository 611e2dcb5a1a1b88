"""The policy pass: every cast is a node, formats follow layers, lists and autograd's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policysearch.formats import FORMATS, format_named
from policysearch.graph import Graph, Node
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.ops.source import LOSS_SCALE
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.inclusion import contains
from policysearch.train.step import trace_forward, trace_step
from policysearch.values import InputError

LOW = ("matmul", "conv2d", "bias")
HIGH = ("softmax_cross_entropy", "mean_squared_error")
REST = tuple(op for op in FORWARD_OPS if op not in LOW + HIGH)
NET = mlp((16, 8, 8, 4))
STEP = trace_step(NET, "softmax_cross_entropy", Optimizer("momentum"), 4)
SCALED = LossScale("fixed", 128.0)


def _policy(layer: LayerPolicy, scale: LossScale = SCALED, names: tuple[str, ...] = ()) -> Policy:
    layers = tuple((name, layer) for name in names or NET.layer_names)
    return Policy("test", layers, LOW, HIGH, REST, loss_scale=scale)


def _nodes(graph: Graph, **wanted: str) -> list[Node]:
    return [
        n
        for n in graph.nodes
        if all((n.op.name if key == "op" else getattr(n, key)) == v for key, v in wanted.items())
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_every_operand_of_a_product_is_in_the_format_the_policy_names(name: str) -> None:
    layer = uniform_layer(name)
    graph = apply_policy(STEP, _policy(layer))
    for node in _nodes(graph, op="matmul"):
        formats = [i.format for i in graph.inputs_of(node)]
        expected = {"fprop": (layer.compute, layer.compute)}.get(
            node.role, (layer.grad, layer.compute)
        )
        assert tuple(formats) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_formats_change_only_at_casts_and_roundings(name: str) -> None:
    """An op that keeps its format must be given values its format holds."""
    graph = apply_policy(STEP, _policy(uniform_layer(name)))
    for node in graph.nodes:
        if node.op.keeps_format:
            held = [i for i in graph.inputs_of(node) if i.shape != ()]
            assert all(contains(format_named(node.format), format_named(i.format)) for i in held)


def test_float32_policy_adds_nothing() -> None:
    graph = apply_policy(STEP, _policy(uniform_layer("float32"), LossScale()))
    assert _nodes(graph, op="cast") == []
    assert _nodes(graph, op="unscale") == _nodes(graph, op="all_finite") == []


def test_master_weights_stay_float32_and_without_them_updates_are_rounded() -> None:
    layer = uniform_layer("float16", param="float16")
    masters = apply_policy(STEP, _policy(layer))
    assert {n.format for n in _nodes(masters, op="parameter")} == {"float32"}
    assert {n.format for n in _nodes(masters, op="sgd_step")} == {"float32"}
    bare = apply_policy(STEP, replace(_policy(layer), master_weights=False))
    assert {n.format for n in _nodes(bare, op="parameter")} == {"float16"}
    assert {n.format for n in _nodes(bare, op="sgd_step")} == {"float16"}
    weights = [n for n in _nodes(bare, op="cast", role="fprop") if bare.inputs_of(n)[0].name]
    assert [bare.inputs_of(n)[0].name for n in weights] == ["images"]


def test_gradients_are_float32_before_they_are_unscaled() -> None:
    graph = apply_policy(STEP, _policy(uniform_layer("float16")))
    for node in _nodes(graph, op="unscale"):
        assert [i.format for i in graph.inputs_of(node)] == ["float32", "float32"]
        assert graph.inputs_of(node)[0].op.name == "cast"


def test_the_loss_is_float32_and_its_gradient_starts_from_the_loss_scale() -> None:
    graph = apply_policy(STEP, _policy(uniform_layer("float16")))
    (loss,) = _nodes(graph, op="softmax_cross_entropy")
    assert loss.format == "float32"
    assert graph.inputs_of(loss)[0].op.name == "cast"
    (start,) = _nodes(graph, op="softmax_cross_entropy_grad")
    assert graph.inputs_of(start)[0].name == LOSS_SCALE


def test_one_float32_layer_inside_float16_is_reached_by_casts_both_ways() -> None:
    policy = _policy(uniform_layer("float16")).with_layers({"fc2": uniform_layer("float32")})
    graph = apply_policy(STEP, policy)
    for node in _nodes(graph, op="matmul", layer="fc2"):
        assert {i.format for i in graph.inputs_of(node)} == {"float32"}
    (relu_grad,) = _nodes(graph, op="relu_grad", layer="relu1")
    assert relu_grad.format == "float16"
    assert graph.inputs_of(relu_grad)[0].op.name == "cast"


def test_a_weight_is_cast_once_for_forward_and_backward() -> None:
    graph = apply_policy(STEP, _policy(uniform_layer("bfloat16")))
    casts = [n for n in _nodes(graph, op="cast") if graph.inputs_of(n)[0].name == "fc2.weight"]
    assert len(casts) == 1


@pytest.mark.parametrize(
    ("mode", "product", "total"),
    [
        ("fused", "float32", "float16"),
        ("rounded", "float16", "float16"),
        ("fp32", "float16", "float32"),
    ],
)
def test_bias_modes(mode: str, product: str, total: str) -> None:
    policy = replace(_policy(uniform_layer("float16")), bias=mode)  # type: ignore[arg-type]
    graph = apply_policy(STEP, policy)
    (summed,) = _nodes(graph, op="bias", layer="fc1")
    assert summed.format == total
    left = graph.inputs_of(summed)[0]
    if left.op.name == "cast":
        (left,) = graph.inputs_of(left)
    assert left.format == product
    matmul = next(n for n in _nodes(graph, op="matmul", layer="fc1") if n.role == "fprop")
    assert matmul.fused == (mode == "fused")


def test_cuda_rounds_a_convolution_alone_before_its_bias() -> None:
    net = lenet5()
    policy = _policy(uniform_layer("bfloat16"), names=tuple(net.layer_names))
    policy = replace(policy, bias="convolution_rounded")
    graph = apply_policy(trace_forward(net, 4), policy)
    found = {node.layer: graph.inputs_of(node)[0].format for node in _nodes(graph, op="bias")}
    low = dict.fromkeys(("conv1", "conv2"), "bfloat16")
    assert found == low | dict.fromkeys(("fc1", "fc2", "fc3"), "float32")


def test_gradients_pass_the_all_reduce_format() -> None:
    policy = replace(_policy(uniform_layer("float32")), all_reduce="bfloat16")
    graph = apply_policy(STEP, policy)
    for node in _nodes(graph, op="unscale"):
        (back,) = [i for i in graph.inputs_of(node) if i.op.name == "cast"]
        assert graph.inputs_of(back)[0].format == "bfloat16"


def test_optimizer_state_is_kept_in_its_format() -> None:
    policy = replace(_policy(uniform_layer("float32")), optimizer_state="bfloat16")
    graph = apply_policy(STEP, policy)
    assert {n.format for n in _nodes(graph, op="state")} == {"bfloat16"}
    (step, *_) = _nodes(graph, op="sgd_step")
    assert graph.inputs_of(step)[1].op.name == "sgd_velocity"
    assert graph.inputs_of(step)[1].format == "float32"
    kept = [graph.nodes[new] for old, new in graph.updates if graph.nodes[old].op.name == "state"]
    assert {(node.op.name, node.format) for node in kept} == {("cast", "bfloat16")}


def test_in_the_eager_order_the_step_reads_the_rounded_state() -> None:
    policy = replace(
        _policy(uniform_layer("float32")), optimizer_state="bfloat16", optimizer_order="eager"
    )
    graph = apply_policy(STEP, policy)
    assert not _nodes(graph, op="sgd_velocity")
    (step, *_) = _nodes(graph, op="sgd_step")
    read = graph.inputs_of(step)[1]
    (moved,) = graph.inputs_of(read)
    assert (read.op.name, moved.op.name, moved.format) == ("cast", "add", "bfloat16")
    assert [node.op.name for node in graph.inputs_of(moved)] == ["scale", "unscale"]


def test_an_op_in_no_list_and_a_layer_without_formats_are_named() -> None:
    policy = replace(_policy(uniform_layer("float16")), promote_ops=())
    with pytest.raises(InputError, match="op 'relu' of layer 'relu1' is in no list"):
        apply_policy(STEP, policy)
    partial = _policy(uniform_layer("float16"), names=("fc1", "fc2"))
    with pytest.raises(InputError, match="no layer 'fc3'"):
        apply_policy(STEP, partial)
    low = _policy(uniform_layer("float16"))
    fp32 = tuple(op for op in low.fp32_ops if op != "softmax_cross_entropy")
    ops = (*low.low_precision_ops, "softmax_cross_entropy")
    with pytest.raises(InputError, match="'softmax_cross_entropy' has to be in fp32_ops"):
        apply_policy(STEP, replace(low, low_precision_ops=ops, fp32_ops=fp32))


def test_a_convolutional_step_keeps_its_outputs_and_updates() -> None:
    net = lenet5()
    step = trace_step(net, "softmax_cross_entropy", Optimizer("adam"), 2)
    policy = _policy(uniform_layer("float16"), names=net.layer_names)
    graph = apply_policy(step, policy)
    assert [name for name, _ in graph.outputs] == [name for name, _ in step.outputs]
    assert len(graph.updates) == len(step.updates)
    assert all(i < n.id for n in graph.nodes for i in n.inputs)


def test_a_gradient_reads_a_parameter_in_the_format_of_the_forward_pass() -> None:
    """layer_norm in float16 reads a float16 weight, and so does its gradient."""
    net = transformer((1, 8, 8), 10, width=8, hidden=(16,), heads=2)
    step = trace_step(net, "softmax_cross_entropy", Optimizer("sgd"), 2)
    graph = apply_policy(step, preset("mindspore.O3", net.layer_names))
    grads = _nodes(graph, op="layer_norm_grad")
    assert grads
    for node in grads:
        assert {graph.nodes[i].format for i in node.deciding} == {"float16"}
        assert [i.format for i in graph.inputs_of(node) if i.op.name == "layer_statistics"] == [
            "float32"
        ]


def test_five_formats_that_differ_each_go_where_the_layer_says() -> None:
    five = LayerPolicy("float16", "bfloat16", "float8_e5m2", "tfloat32", "float8_e4m3fn")
    graph = apply_policy(STEP, _policy(five))
    for node in _nodes(graph, op="matmul", layer="fc2"):
        operands = [i.format for i in graph.inputs_of(node)]
        if node.role == "fprop":
            assert operands == ["float16", "float16"]
            stored = graph.inputs_of(graph.inputs_of(node)[1])[0]
            assert (stored.op.name, stored.format) == ("cast", "float8_e4m3fn")
        else:
            # beside narrow gradients the other operand is narrow too, never wide as in fprop
            assert sorted(operands) == ["float8_e4m3fn", "float8_e5m2"]
            # below 16 bits `grad` names operands alone: the result of dgrad is an output
            assert node.format == {"dgrad": "bfloat16", "wgrad": "tfloat32"}[node.role]
    (summed,) = [n for n in _nodes(graph, op="bias", layer="fc2")]
    assert summed.format == "bfloat16"


def test_the_gradient_of_a_bias_is_a_weight_gradient() -> None:
    layer = LayerPolicy("float16", "float16", "bfloat16", "tfloat32", "float16")
    graph = apply_policy(STEP, _policy(layer))
    made = _nodes(graph, op="bias_grad")
    assert {n.layer for n in made} == set(NET.layer_names) - {"tanh1", "tanh2", "relu1", "relu2"}
    assert {(n.role, n.format) for n in made} == {("wgrad", "tfloat32")}
    assert {n.format for n in _nodes(graph, op="matmul", role="dgrad")} == {"bfloat16"}


def test_gradients_of_one_value_are_summed_in_its_own_format() -> None:
    """As autograd does: what the float32 norm gives back is rounded before the sum."""
    model = transformer((1, 8, 8), 10, 8, (16,), 2)
    step = trace_step(model, "softmax_cross_entropy", Optimizer(), 2)
    graph = apply_policy(step, preset("float16", model.layer_names))
    sums = [node for node in graph.nodes if "gradient_of" in node.attributes]
    forward = {(n.layer, n.op.name): n.format for n in graph.nodes if n.role == "fprop"}
    assert {n.format for n in sums} == {"float16", "float32"}
    for node in sums:
        assert node.format == forward[node.attributes["gradient_of"]]
        assert {value.format for value in graph.inputs_of(node)} == {node.format}
