"""The transformer: its ops and whole step against torch, policies on it, and training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import Dataset
from policysearch.emulator.compile import compile_graph
from policysearch.formats import format_named
from policysearch.graph import Attrs, FloatArray, Graph
from policysearch.nn.attention import SelfAttention, Tokens
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Linear, Residual
from policysearch.nn.models import MODELS, transformer
from policysearch.nn.norms import LayerNorm
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE, TARGETS, data
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import quantise
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError

TASK = Task(
    model="transformer",
    activation="gelu",
    widths=(16, 32),
    data="digits",
    optimizer="adamw",
    learning_rate=3e-3,
    batch_size=32,
    steps=30,
    tail_steps=5,
)


def computed(op: str, attrs: Attrs, *arrays: FloatArray) -> FloatArray:
    b = Builder()
    ids = [
        b.emit(data, attrs={"shape": array.shape}, role="input", name=f"x{i}")
        for i, array in enumerate(arrays)
    ]
    executable = compile_graph(b.graph({"y": b.emit(OPS[op], *ids, attrs=attrs)}))
    # the second run must see the new values
    for factor in (np.float32(0.0), np.float32(1.0)):
        for i, array in enumerate(arrays):
            executable.arrays[f"x{i}"][...] = array * factor
        executable.forward_backward()
    return executable.value("y").copy()


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((5, 7), {"axes": (1, 0)}),
        ((2, 3, 4), {"axes": (2, 0, 1)}),
        ((2, 3, 4, 5), {"axes": (0, 2, 1, 3)}),
        ((2, 3, 4, 5), {"axes": (3, 1, 0, 2), "shape": (15, 8)}),
        ((2, 3, 4, 5), {"axes": (1, 0), "split": (6, 20)}),
        ((12, 10), {"axes": (2, 0, 3, 1), "split": (3, 4, 2, 5), "shape": (2, 15, 4)}),
        ((6, 4), {"axes": (0, 1), "split": (2, 12), "shape": (4, 6)}),
    ],
)
def test_transpose_permutes_as_numpy_does(shape: tuple[int, ...], attrs: Attrs) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = x.reshape(attrs.get("split", shape)).transpose(attrs["axes"])
    np.testing.assert_array_equal(
        computed("transpose", attrs, x), y.reshape(attrs.get("shape", y.shape))
    )


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 8), (2, 3, 100), (2, 3, 4, 5)], ids=str)
def test_softmax_of_every_layout(shape: tuple[int, ...]) -> None:
    x = 3 * np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    share = np.exp(x.astype(np.float64))
    share /= share.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(computed("softmax", {}, x), share, rtol=1e-5)
    b = Builder()
    grad, y = (b.emit(data, attrs={"shape": shape}, role="input", name=name) for name in "gy")
    executable = compile_graph(b.graph({"dx": b.emit(OPS["softmax_grad"], grad, y)}))
    executable.arrays["g"][...], executable.arrays["y"][...] = x, share
    executable.forward_backward()
    expected = share * (x - (share * x).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(executable.value("dx"), expected, rtol=1e-4, atol=1e-6)


def test_softmax_and_layer_norm_take_large_values() -> None:
    x = np.array([[1e4, 1e4 + 1, -3e38], [3e38, 3e38, 3e38]], np.float32)
    share = 1 / (1 + np.e)
    expected = [[share, 1 - share, 0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(computed("softmax", {}, x), expected, rtol=1e-5)
    moved = np.array([[4096.0, 4097.0, 4098.0]], np.float32)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    statistics = computed("layer_statistics", {"epsilon": 0.0}, moved)
    np.testing.assert_allclose(statistics, [[4097.0, 1.5**0.5]], rtol=1e-6)
    y = computed("layer_norm", {}, moved, statistics, ones, zeros)
    np.testing.assert_allclose(y, [[-(1.5**0.5), 0.0, 1.5**0.5]], rtol=1e-5, atol=1e-6)


def torch_logits(torch: Any, model: Chain, p: Mapping[str, Any], images: Any, heads: int) -> Any:
    """Return the logits of the same net written with torch's own functions."""
    linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm

    def dense(x: Any, name: str) -> Any:
        return linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def normal(x: Any, name: str) -> Any:
        return norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"])

    # [batch, channels, rows, columns] to [batch, rows, channels * columns]
    x = dense(images.transpose(1, 2).flatten(2), "embed")
    x = x + p["position.bias"].reshape(x.shape[1:])
    blocks = [name.removesuffix(".add1") for name in model.layer_names if name.endswith(".add1")]
    for block in blocks:
        y = normal(x, f"{block}.norm1")
        parts = [dense(y, f"{block}.attention.{part}") for part in "qkv"]
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + dense(y.transpose(1, 2).flatten(2), f"{block}.attention.o")
        y = dense(normal(x, f"{block}.norm2"), f"{block}.fc1")
        x = x + dense(torch.nn.functional.gelu(y), f"{block}.fc2")
    return dense(normal(x, "norm").flatten(1), "head")


def random_inputs(model: Chain, batch: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng(6)
    fed = {
        # no parameter at 0 or 1, where a missing factor would not show
        name: value + np.float32(0.3) * rng.standard_normal(value.shape).astype(np.float32)
        for name, value in model.init(rng).items()
    }
    fed["images"] = rng.standard_normal((batch, *model.input_shape)).astype(np.float32)
    fed[TARGETS] = np.eye(model.classes, dtype=np.float32)[rng.integers(0, model.classes, batch)]
    for name in (LOSS_SCALE, INVERSE_SCALE):
        fed[name] = np.array(1.0, np.float32)
    return fed


def run_step(graph: Graph, fed: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    executable = compile_graph(graph)
    for name, value in fed.items():
        executable.arrays[name][...] = value
    executable.forward_backward()
    return {name: executable.value(name).copy() for name, _ in graph.outputs}


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 5, 6)], ids=str)
def test_step_agrees_with_torch(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    model = transformer(shape, 5, width=12, hidden=(20, 24), heads=3)
    fed = random_inputs(model, 4)
    found = run_step(trace_step(model, "softmax_cross_entropy", Optimizer(), 4), fed)
    params = {
        spec.name: torch.tensor(fed[spec.name], requires_grad=True) for spec in model.parameters()
    }
    logits = torch_logits(torch, model, params, torch.tensor(fed["images"]), 3)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(fed[TARGETS]))
    loss.backward()
    np.testing.assert_allclose(found["logits"], logits.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-5)
    for name, param in params.items():
        expected = param.grad.numpy()
        largest = np.abs(expected).max()
        # the softmax over the keys does not see what a bias of k adds to all of them
        if not name.endswith(".k.bias"):
            assert largest > 1e-4, name
        error = np.abs(found[f"grad:{name}"] - expected).max()
        assert error <= 1e-5 * max(largest, 1.0), name


def test_sequences_and_images_of_one_channel_are_the_same_tokens() -> None:
    image, sequence = (transformer(shape, 3, 8, (8,), 2) for shape in ((1, 5, 6), (5, 6)))
    fed = random_inputs(image, 2)
    steps = [trace_step(m, "mean_squared_error", Optimizer(), 2) for m in (image, sequence)]
    first = run_step(steps[0], fed)
    second = run_step(steps[1], {**fed, "images": fed["images"][:, 0]})
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_layers_have_names_in_order_and_own_their_parameters() -> None:
    model = transformer((1, 8, 8), 10, 32, (64, 64))
    block = (
        *("norm1", "attention.q", "attention.k", "attention.v", "attention", "attention.o"),
        *("add1", "norm2", "fc1", "gelu", "fc2", "add2"),
    )
    blocks = [f"block{number}.{part}" for number in (1, 2) for part in block]
    ends = ("norm", "flatten", "head")
    assert model.layer_names == ("tokens", "embed", "position", *blocks, *ends)
    assert {spec.layer for spec in model.parameters()} < set(model.layer_names)
    assert model.parameters_of("block2.attention.q")[0].shape == (32, 32)
    start = model.init(np.random.default_rng(0))
    assert (start["norm.weight"] == 1.0).all() and (start["norm.bias"] == 0.0).all()
    graph = trace_step(model, "softmax_cross_entropy", Optimizer(), 2)
    seen = {node.layer for node in graph.nodes if node.op.name != "all_finite"}
    assert seen - {"", "loss"} == set(model.layer_names)


@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "float8", "mindspore.O2", "mindspore.O3", "apex.O3"]
)
def test_values_of_a_policy_lie_on_their_grids(name: str) -> None:
    model = transformer((1, 8, 8), 10, 8, (16,), 2)
    graph = trace_step(model, "softmax_cross_entropy", Optimizer(), 3)
    rewritten = apply_policy(graph, preset(name, model.layer_names))
    low = [node for node in rewritten.nodes if node.format != "float32" and not node.fused]
    assert low
    watched = replace(
        rewritten, outputs=(*rewritten.outputs, *((f"node{node.id}", node.id) for node in low))
    )
    fed = random_inputs(model, 3)
    for node in low:
        if node.name in fed:
            fed[node.name] = quantise(fed[node.name], format_named(node.format))
    values = run_step(watched, fed)
    for node in low:
        value = values[f"node{node.id}"]
        on_grid = quantise(value, format_named(node.format))
        np.testing.assert_array_equal(value, on_grid, err_msg=f"{node.op.name} of {node.layer}")


def test_float8_products_read_eight_bits_and_softmax_stays_float32() -> None:
    model = transformer((1, 8, 8), 10, 8, (16,), 2)
    graph = trace_step(model, "softmax_cross_entropy", Optimizer(), 3)
    rewritten = apply_policy(graph, preset("float8", model.layer_names))
    products = [node for node in rewritten.nodes if node.op.name == "matmul"]
    attention = [node for node in products if node.layer == "block1.attention"]
    assert len(attention) == 2 + 4
    for node in products:
        formats = {rewritten.nodes[i].format for i in node.inputs}
        expected = {"float8_e4m3fn"} if node.role == "fprop" else {"float8_e4m3fn", "float8_e5m2"}
        assert formats == expected, node
    for node in rewritten.nodes:
        if node.op.name.startswith(("softmax", "layer_norm")):
            assert node.format == "float32"


@pytest.mark.parametrize("name", ["float32", "float16", "float8"])
def test_training_lowers_the_loss(name: str, digits: Dataset) -> None:
    layers = TASK.build_model(digits).layer_names
    run = train(TASK, preset(name, layers), seed=0, dataset=digits)
    assert not run.diverged
    assert run.tail_loss < 0.5 * run.losses[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: transformer((1, 8, 8), 10, 30), "width 30, .* heads 4"),
        (lambda: transformer((8,), 10), "input \\[8\\]; expected \\[time, features\\]"),
        (lambda: MODELS["transformer"]((1, 8, 8), 10, "gelu", (32, 0)), "hidden \\[0\\]"),
        (lambda: MODELS["transformer"]((1, 8, 8), 10, "swish", ()), "activation: 'swish'"),
        (lambda: SelfAttention("a", 8, 3, 4), "heads: 3; expected a divisor of 8"),
        (lambda: LayerNorm("n", 8).parameters((4,)), "layer n: .*expected \\[8\\]"),
        (lambda: Tokens("t").parameters((4,)), "layer t: .*expected \\[time, width\\]"),
        (lambda: Residual("r", (Linear("a", 4, 3),)).parameters((4,)), "layer r: \\[3\\]"),
        (lambda: Chain("m", (Residual("r", (LayerNorm("r", 4),)),), (4,), 4), "'r' twice"),
    ],
)
def test_what_does_not_fit_is_an_input_error(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()
