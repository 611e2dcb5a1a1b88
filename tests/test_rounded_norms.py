"""Norms with a format inside, against torch doing the same operation by operation in float16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph
from policysearch.nn.model import Model
from policysearch.nn.models import resnet, transformer
from policysearch.ops.rounded_arithmetic import RoundedArithmetic
from policysearch.ops.rounded_norms import ROUNDED_NORMS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy
from policysearch.policy.preset_row import NORMS
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import fast_ways, quantise
from policysearch.train.step import trace_forward, trace_step
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, started

NETS: dict[str, Model] = {
    "layer_norm": transformer((4, 8), 10, 8, (16, 16), 2),
    "batch_norm": resnet((3, 8, 8), 10, (4, 8)),
}


def step_of(name: str, policy: str = "mindspore.O3", **changes: Any) -> Graph:
    model = NETS[name]
    step = trace_step(model, "softmax_cross_entropy", Optimizer(), 4)
    return apply_policy(step, replace(preset(policy, model.layer_names), **changes))


@pytest.mark.parametrize("name", NETS)
def test_the_norms_of_a_low_step_have_their_format_inside(name: str) -> None:
    plain, rounded = step_of(name), step_of(name, norm_inner="format")
    changed = [
        (old.op.name, new)
        for old, new in zip(plain.nodes, rounded.nodes, strict=True)
        if old != new
    ]
    kind = "layer" if name == "layer_norm" else "batch"
    expected = {op for op in ROUNDED_NORMS if op.startswith(kind)}
    assert {op for op, _ in changed} == expected
    assert all(new.op is ROUNDED_NORMS[op] for op, new in changed)
    assert {new.attributes["inner"] for _, new in changed} == {"float16"}
    assert len(changed) == sum(node.op.name in expected for node in plain.nodes)


@pytest.mark.parametrize("policy", ["float32", "mindspore.O2", "float16"])
def test_norms_in_float32_stay_as_they_are(policy: str) -> None:
    for name in NETS:
        assert step_of(name, policy, norm_inner="format") == step_of(name, policy)


def test_a_norm_whose_layer_is_float32_stays_as_it_is() -> None:
    model = NETS["batch_norm"]
    low = replace(preset("mindspore.O3", model.layer_names), norm_inner="format")
    norm = next(n.layer for n in trace_forward(model, 2).nodes if n.op.name == "batch_norm")
    wide = preset("float32", model.layer_names).layer(norm)
    step = trace_step(model, "softmax_cross_entropy", Optimizer(), 4)
    nodes = apply_policy(step, low.with_layers({norm: wide})).nodes
    assert {n.layer == norm for n in nodes if n.op.name in ROUNDED_NORMS} == {True}
    assert any(n.op.name == "batch_norm_inner" for n in nodes)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("fast", fast_ways())
def test_every_way_of_running_gives_the_same_bits(name: str, fast: Any) -> None:
    graph = step_of(name, norm_inner="format")
    assert_gives_the_bits_of_the_reference(graph, started(graph, NETS[name]), fast)


@pytest.mark.parametrize("name", NETS)
def test_the_loss_moves_and_not_far(name: str) -> None:
    losses = []
    for inner in ("float32", "format"):
        graph = step_of(name, norm_inner=inner)
        step = compile_graph(graph, fast="off")
        for source, values in started(graph, NETS[name]).items():
            step.arrays[source][...] = values
        step.forward_backward()
        losses.append(float(step.value("loss")))
    assert 0 < abs(losses[0] - losses[1]) < 0.02


# --- torch as the oracle: every operation of float16 tensors on a CPU rounds once ---


def torch_sum(values: Any) -> Any:
    """Sum over the first axis in sixteen lanes, which are then added half to half."""
    import torch

    lanes = torch.zeros((16, *values.shape[1:]), dtype=values.dtype)
    for row, value in enumerate(values):
        lanes[row % 16] += value
    for half in (8, 4, 2, 1):
        lanes[:half] += lanes[half : 2 * half]
    return lanes[0]


def norm_in_torch(x: Any, grad: Any, weight: Any, bias: Any) -> dict[str, Any]:
    """Normalise [n, m] over its first axis; weight and bias broadcast to that. All float16."""
    import torch

    n = len(x)
    mean = torch_sum(x) / n
    centred = x - mean
    variance = torch_sum(centred * centred) / n
    root = (variance + torch.tensor(1e-5)).sqrt()
    inverse = torch.ones_like(root) / root
    normal = centred * inverse
    return {
        "mean": mean,
        "variance": variance,
        "inverse": inverse,
        "normal": normal,
        "product": normal * grad,
    }


@pytest.fixture
def arrays() -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    rng = np.random.default_rng(0)
    half = format_named("float16")
    x, grad = (quantise(a, half) for a in rng.normal(0.5, 2.0, (2, 40, 24)).astype(np.float32))
    weight, bias = (quantise(a, half) for a in rng.normal(1.0, 0.3, (2, 24)).astype(np.float32))
    return x, grad, weight, bias


def computed(name: str, *inputs: FloatArray, shape: tuple[int, ...], **attrs: Any) -> FloatArray:
    """Return what the op makes, its result rounded onto float16 where a step would do so."""
    op = ROUNDED_NORMS[name]
    assert op.shape([a.shape for a in inputs], attrs) == shape
    out = np.asarray(op.forward(inputs, {**attrs, "inner": "float16"}))
    assert out.shape == shape
    return out


def gradient_in_torch(g: Any, found: dict[str, Any], factor: Any) -> Any:
    n = len(g)
    along = found["normal"] * (torch_sum(g * found["normal"]) / n)
    return ((g - torch_sum(g) / n) - along) * factor


Given = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


@pytest.mark.torch
def test_layer_norm_is_torchs_operations_in_float16(arrays: Given) -> None:
    torch = pytest.importorskip("torch")
    x, grad, weight, bias = arrays
    tx, tg, tw, tb = (torch.tensor(a).half() for a in arrays)
    found = norm_in_torch(tx.T, tg.T, tw, tb)
    statistics = computed("layer_statistics", x, shape=(40, 2))
    assert_equal(statistics[:, 0], found["mean"])
    assert_equal(statistics[:, 1], found["inverse"])
    y = found["normal"] * tw[:, None] + tb[:, None]
    assert_equal(computed("layer_norm", x, statistics, weight, bias, shape=x.shape), y.T)
    g = tg.T * tw[:, None]
    assert_equal(
        computed("layer_norm_grad", grad, x, statistics, weight, shape=x.shape),
        gradient_in_torch(g, found, found["inverse"]).T,
    )
    given = computed("layer_norm_weight_grad", grad, x, statistics, shape=(24,))
    assert_equal(given, torch_sum(found["product"].T))


@pytest.mark.torch
def test_batch_norm_is_torchs_operations_in_float16(arrays: Given) -> None:
    torch = pytest.importorskip("torch")
    x, grad, weight, bias = arrays
    tx, tg, tw, tb = (torch.tensor(a).half() for a in arrays)
    found = norm_in_torch(tx, tg, tw, tb)
    mean, variance = (computed(f"batch_{what}", x, shape=(24,)) for what in ("mean", "variance"))
    assert_equal(mean, found["mean"])
    assert_equal(variance, found["variance"])
    factor = found["inverse"] * tw
    y = (tx - found["mean"]) * factor + tb
    assert_equal(computed("batch_norm", x, mean, variance, weight, bias, shape=x.shape), y)
    assert_equal(
        computed("batch_norm_grad", grad, x, mean, variance, weight, shape=x.shape, training=True),
        gradient_in_torch(tg, found, factor),
    )
    fixed = computed("batch_norm_grad", grad, x, mean, variance, weight, shape=x.shape)
    assert_equal(fixed, tg * factor)
    given = computed("batch_norm_weight_grad", grad, x, mean, variance, shape=(24,))
    assert_equal(given, torch_sum(found["product"]))


def assert_equal(given: FloatArray, expected: Any) -> None:
    expected = expected.float().numpy()
    np.testing.assert_array_equal(given, expected)
    assert np.abs(expected).max() > 0


@pytest.mark.parametrize("op", ROUNDED_NORMS)
def test_images_are_normalised_as_the_matrix_of_their_values(op: str) -> None:
    """[batch, channels, height, width] and [..., features] are the same as their matrices."""
    rng = np.random.default_rng(1)
    image = op.startswith("batch")
    shape = (3, 5, 2, 4) if image else (2, 4, 6)
    x, grad = rng.standard_normal((2, *shape)).astype(np.float32)
    flat: Callable[[FloatArray], FloatArray] = (
        (lambda a: np.moveaxis(a, 1, -1).reshape(-1, 5)) if image else (lambda a: a.reshape(-1, 6))
    )
    n = 5 if image else 6
    owned = [*rng.uniform(0.5, 2.0, (2, n)).astype(np.float32)]
    statistics = (
        [*rng.uniform(0.5, 2.0, (2, n)).astype(np.float32)]
        if image
        else [rng.uniform(0.5, 2.0, (*shape[:-1], 2)).astype(np.float32)]
    )
    plain = [a if image else a.reshape(-1, 2) for a in statistics]
    takes = {"norm": ("x", owned), "grad": ("gx", owned[:1]), "weight_grad": ("gx", [])}
    what, more = takes.get(op.partition("_norm_")[2] or op.partition("_")[2], ("x", []))
    few = statistics if op.endswith(("norm", "grad")) else []
    same = plain if few else []
    given = [x] if what == "x" else [grad, x]
    one, other = [*given, *few, *more], [*map(flat, given), *same, *more]
    attrs = {"training": True}
    results = []
    for inputs in (one, other):
        out = ROUNDED_NORMS[op].shape([a.shape for a in inputs], attrs)
        results.append(computed(op, *inputs, shape=out, **attrs))
    first = results[0]
    if first.shape == shape:
        first = flat(first)
    np.testing.assert_array_equal(first.reshape(results[1].shape), results[1])


def test_a_sum_stops_growing_where_the_format_is_at_its_end() -> None:
    """Ones in bfloat16: sixteen lanes that reach 256 each, where 256 + 1 is 256."""
    inner = RoundedArithmetic(format_named("bfloat16"))
    assert inner.sum(np.ones((16 * 1000, 1), np.float32))[0] == 16 * 256


def test_a_policy_with_it_is_another_policy() -> None:
    policy: Policy = preset("mindspore.O3", ("a",))
    assert replace(policy, norm_inner="format").digest != policy.digest
    assert NORMS == ("batch_norm", "layer_norm")
