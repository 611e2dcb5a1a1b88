"""Layers and models: shapes, initial values, and forward and backward passes against torch."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.nn.chain import Chain
from policysearch.nn.layers import ACTIVATIONS, POOLS, Activation, Conv2d, Flatten, Linear, Pool
from policysearch.nn.model import Fed
from policysearch.nn.models import MODELS, WIDTHS, lenet5, mlp, narrower
from policysearch.ops.builder import Builder
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE, TARGETS, data
from policysearch.optimizers.optimizer import Optimizer
from policysearch.train.feeding import feed_constants
from policysearch.train.gradients import Clipping
from policysearch.train.losses import LOSSES
from policysearch.train.step import trace_forward, trace_step
from policysearch.train.tasks import Task
from policysearch.values import InputError


def test_lenet5_is_the_published_net() -> None:
    model = lenet5()
    assert model.layer_names == (
        *("conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "flatten"),
        *("fc1", "relu3", "fc2", "relu4", "fc3"),
    )
    shapes = {spec.name: spec.shape for spec in model.parameters() if spec.name.endswith(".weight")}
    assert shapes == {
        "conv1.weight": (6, 1, 5, 5),
        "conv2.weight": (16, 6, 5, 5),
        "fc1.weight": (120, 400),
        "fc2.weight": (84, 120),
        "fc3.weight": (10, 84),
    }
    assert sum(int(np.prod(spec.shape)) for spec in model.parameters()) == 61706
    assert lenet5("tanh").layer_names[1] == "tanh1"
    assert lenet5(size=28).parameters_of("fc1")[0].shape == (120, 256)


def test_mlp_has_no_activation_behind_the_classes() -> None:
    assert mlp((64, 32, 10), "tanh").layer_names == ("fc1", "tanh1", "fc2")
    assert mlp((64, 10), input_shape=(1, 8, 8)).layer_names == ("flatten", "fc1")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_logits(name: str) -> None:
    widths = (12, 7) if name == "mlp" else ()
    shape = (6,) if name == "gpt" else (3, 24, 24)
    model = MODELS[name](shape, 5, "tanh", widths)
    executable = compile_graph(trace_forward(model, 4))
    feed_constants(executable, model)
    for key, value in model.init(np.random.default_rng(0)).items():
        executable.arrays[key][...] = value
    rng = np.random.default_rng(1)
    fed = rng.integers(0, 5, (4, *shape)) if model.whole else rng.standard_normal((4, *shape))
    executable.arrays[model.inputs[0].name][...] = fed
    executable.forward_backward()
    assert executable.value("logits").shape == (4 * model.rows_per_example, 5)
    assert np.isfinite(executable.value("logits")).all()


@pytest.mark.parametrize("name", WIDTHS)
def test_a_narrower_net_has_the_same_layers_with_fewer_features(name: str) -> None:
    widths, shape = WIDTHS[name] or (16, 8), (6,) if name == "gpt" else (3, 24, 24)
    wide, narrow = (
        MODELS[name](shape, 5, "tanh", given) for given in (widths, narrower(name, widths, 0.5))
    )
    assert narrow.layer_names == wide.layer_names
    pairs = list(zip(narrow.parameters(), wide.parameters(), strict=True))
    assert all(small.name == large.name for small, large in pairs)
    sizes = [(math.prod(small.shape), math.prod(large.shape)) for small, large in pairs]
    assert all(small <= large for small, large in sizes)
    assert sum(small for small, _ in sizes) < 0.6 * sum(large for _, large in sizes)
    assert narrower(name, () if WIDTHS[name] else widths, 0.5) == narrower(name, widths, 0.5)


def test_initial_values_fill_torchs_range_and_repeat() -> None:
    model = lenet5()
    first, again = (model.init(np.random.default_rng(3)) for _ in range(2))
    for spec in model.parameters():
        value, bound = first[spec.name], spec.fan_in**-0.5
        np.testing.assert_array_equal(value, again[spec.name])
        assert value.dtype == np.float32 and value.shape == spec.shape
        assert np.abs(value).max() <= bound * (1 + 1e-6)
        if value.size > 1000:
            assert np.abs(value).max() > 0.99 * bound
            assert value.std() == pytest.approx(bound / 3**0.5, rel=0.05)
            assert abs(value.mean()) < 0.05 * bound


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: mlp((5,)), "widths"),
        (lambda: lenet5(size=8), "size"),
        (lambda: lenet5("swish"), "activation: 'swish'; expected one of relu"),
        (lambda: Pool("pool1", 2, "median"), "pool: 'median'; expected one of"),
        (lambda: Chain("m", (Flatten("a"), Flatten("a")), (4,), 4), "'a' twice"),
        (lambda: Chain("m", (Linear("a", 4, 3),), (4,), 4).parameters(), "output"),
        (lambda: Chain("m", (Linear("a", 5, 4),), (4,), 4).parameters(), "expected \\[5\\]"),
        (lambda: Chain("m", (Conv2d("a", 2, 4, 3),), (1, 9, 9), 4).parameters(), "layer a"),
        (lambda: MODELS["lenet5"]((1, 32, 32), 10, "relu", (3,)), "widths"),
        (lambda: narrower("lenet5", (), 0.5), "of model 'lenet5'; expected a model of mlp"),
        (lambda: narrower("mlp", (), 0.5), "0.5 of the widths .. of model 'mlp'"),
        (lambda: narrower("mlp", (4, 3), 0.5), "that becomes narrower"),
        (lambda: Task(model=lenet5(), widths=(8,)).narrower(0.5), "lenet5, a value"),
        (lambda: MODELS["lenet5"]((1, 32, 30), 10, "relu", ()), "square"),
    ],
)
def test_what_does_not_fit_is_an_input_error(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_every_node_knows_its_layer_and_role() -> None:
    graph = trace_step(lenet5(), "softmax_cross_entropy", Optimizer(), 4, Clipping(1.0))
    layers = {*lenet5().layer_names, "loss"}
    whole_net = ("all_finite", "global_norm")
    for node in graph.nodes:
        if node.role != "input" and node.op.name not in whole_net:
            assert node.layer in layers, node
    order = [node.role for node in graph.nodes]
    first = {role: order.index(role) for role in ("input", "fprop", "dgrad", "update")}
    assert sorted(first, key=lambda role: first[role]) == ["input", "fprop", "dgrad", "update"]
    assert "wgrad" in order and len(graph.updates) == 20


def torch_model(torch: Any, model: Chain) -> Any:
    """Return the same net built from torch's own modules."""
    modules: list[Any] = []
    for layer in model.layers:
        if isinstance(layer, Linear):
            modules.append(torch.nn.Linear(layer.n_in, layer.n_out))
        elif isinstance(layer, Conv2d):
            sizes = (layer.c_in, layer.c_out, layer.window, layer.stride, layer.padding)
            modules.append(torch.nn.Conv2d(*sizes))
        elif isinstance(layer, Activation):
            known = {
                "relu": torch.nn.ReLU(),
                "tanh": torch.nn.Tanh(),
                "gelu": torch.nn.GELU(),
                "gelu_tanh": torch.nn.GELU(approximate="tanh"),
            }
            modules.append({**known, "sigmoid": torch.nn.Sigmoid()}[layer.function])
        elif isinstance(layer, Pool):
            pool = {"max": torch.nn.MaxPool2d, "average": torch.nn.AvgPool2d}[layer.function]
            modules.append(pool(layer.window))
        else:
            modules.append(torch.nn.Flatten())
    return torch.nn.Sequential(*modules)


def small_net(activation: str, pool: str) -> Chain:
    layers = (
        Conv2d("conv", 2, 4, 3, stride=2, padding=1),
        Activation("activation", activation),
        Pool("pool", 2, pool),
        Flatten("flatten"),
        Linear("fc", 4 * 3 * 3, 5),
    )
    return Chain("small", layers, (2, 12, 12), 5)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("activation", "pool", "loss"),
    [
        *itertools.product(ACTIVATIONS, POOLS, ("token_cross_entropy", "mean_squared_error")),
        *itertools.product(
            ("tanh",), ("max",), [name for name in LOSSES if name != "binary_cross_entropy"]
        ),
    ],
)
def test_step_agrees_with_torch(activation: str, pool: str, loss: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    model = small_net(activation, pool)
    executable = compile_graph(trace_step(model, loss, Optimizer(), 3))
    images = rng.standard_normal((3, 2, 12, 12)).astype(np.float32)
    targets = np.eye(5, dtype=np.float32)[[1, 4, 0]]
    if LOSSES[loss].classes:
        targets = np.array([1, 4, 0], np.float32)
    fed = {**model.init(rng), "images": images, TARGETS: targets}
    fed |= {LOSS_SCALE: np.array(8, np.float32), INVERSE_SCALE: np.array(0.125, np.float32)}
    for name, value in fed.items():
        executable.arrays[name][...] = value
    executable.forward_backward()
    net = torch_model(torch, model)
    for spec, own in zip(model.parameters(), net.parameters(), strict=True):
        assert spec.shape == tuple(own.shape)
        own.data = torch.from_numpy(fed[spec.name].copy())
    logits = net(torch.from_numpy(images))
    from policysearch.verify.torch_training import named_loss

    wanted = torch.from_numpy(targets)
    expected = named_loss(loss, logits, wanted.long() if LOSSES[loss].classes else wanted)
    expected.backward()
    np.testing.assert_allclose(executable.value("loss"), expected.item(), rtol=1e-5)
    np.testing.assert_allclose(executable.value("scaled_loss"), 8 * expected.item(), rtol=1e-5)
    assert executable.value("finite") == 1.0
    for spec, own in zip(model.parameters(), net.parameters(), strict=True):
        given = executable.value(f"grad:{spec.name}")
        np.testing.assert_allclose(given, own.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_layers_without_bias_own_only_a_weight() -> None:
    assert len(Linear("a", 4, 3, bias=False).parameters((4,))) == 1
    b = Builder()
    x = b.emit(data, attrs={"shape": (2, 4)}, role="input")
    weight = b.emit(data, attrs={"shape": (3, 4)}, role="input")
    assert b.shape(Linear("a", 4, 3, bias=False).trace(b, x, Fed({"a.weight": weight}))) == (2, 3)
