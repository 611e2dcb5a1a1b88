"""Scaling recipes in the policy pass: bits, orientation, and what they do for training."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import FloatArray
from policysearch.nn.models import lenet5, mlp
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, TARGETS
from policysearch.policy.policy import LayerPolicy
from policysearch.policy.scaling import Recipe
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast
from policysearch.train.step import trace_forward
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, started
from tests.emulated_steps import fill as _fill
from tests.rounding_oracle import FASTS
from tests.scaled_steps import ACTIVE, E4M3, FP4, HYBRID, NETS, fill, policy_of, step_of
from tests.turns import turns


def _bf16(x: FloatArray) -> FloatArray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def _scaled(x: FloatArray, name: str = "float8_e4m3fn") -> tuple[FloatArray, np.float32]:
    """Return x * (max / amax) cast by ml_dtypes, and the inverse of the scale."""
    dtype = getattr(ml_dtypes, name)
    scale = np.float32(float(ml_dtypes.finfo(dtype).max)) / np.abs(x).max()
    limit = float(ml_dtypes.finfo(dtype).max)
    return np.clip(x * scale, -limit, limit).astype(dtype).astype(np.float32), 1 / scale


def _linear_step() -> tuple[Step, dict[str, FloatArray], FloatArray]:
    """Return a two-layer step with current scaling that ran, its sources and the loss gradient."""
    model = mlp((32, 48, 16), activation="tanh")
    graph = step_of(model, policy_of(model, "current"), 64)
    arriving = next(n for n in graph.nodes if n.op.name == "softmax_cross_entropy_grad")
    h = next(n for n in graph.nodes if n.op.name == "tanh")
    watched = (*graph.outputs, ("arriving", arriving.id), ("h", h.id))
    executable = compile_graph(replace(graph, outputs=watched))
    rng = np.random.default_rng(0)
    values = {name: 0.02 * value for name, value in model.init(rng).items()}
    values["images"] = (100 * rng.standard_normal((64, 32))).astype(np.float32)
    values[TARGETS] = np.eye(16, dtype=np.float32)[rng.integers(0, 16, 64)]
    fill(executable, {**values, LOSS_SCALE: 2.0**-30, INVERSE_SCALE: 1.0})
    executable.forward_backward()
    return executable, values, executable.value("arriving")


def _close(found: FloatArray, expected: FloatArray) -> None:
    """Equal but where the order of the float32 sum moved a value across a bfloat16 tie."""
    np.testing.assert_allclose(found, expected, rtol=2.0**-7, atol=np.abs(expected).max() / 2**16)
    assert np.mean(found == expected) > 0.97


def test_current_scaling_equals_a_hand_written_float8_step() -> None:
    executable, values, arriving = _linear_step()
    (x, sx), (w1, s1) = _scaled(values["images"]), _scaled(values["fc1.weight"])
    (h, sh), (w2, s2) = _scaled(executable.value("h")), _scaled(values["fc2.weight"])
    first = _bf16((x @ w1.T) * (sx * s1) + _bf16(values["fc1.bias"]))
    _close(executable.value("h"), _bf16(np.tanh(first)))
    _close(executable.value("logits"), _bf16((h @ w2.T) * (sh * s2) + _bf16(values["fc2.bias"])))
    g, sg = _scaled(_bf16(arriving), "float8_e5m2")
    _close(executable.value("grad:fc2.weight"), _bf16((g.T @ h) * (sg * sh)))
    slope = np.float32(1) - executable.value("h") ** 2
    back, sb = _scaled(_bf16(_bf16((g @ w2) * (sg * s2)) * slope), "float8_e5m2")
    _close(executable.value("grad:fc1.weight"), _bf16((back.T @ x) * (sb * sx)))


def test_the_forward_product_equals_torch_scaled_mm() -> None:
    torch = pytest.importorskip("torch")
    executable, values, _ = _linear_step()
    (h, sh), (w, sw) = _scaled(executable.value("h")), _scaled(values["fc2.weight"])
    found = torch._scaled_mm(
        torch.from_numpy(h).to(torch.float8_e4m3fn),
        torch.from_numpy(w).to(torch.float8_e4m3fn).t(),
        scale_a=torch.tensor(float(sh)),
        scale_b=torch.tensor(float(sw)),
        out_dtype=torch.float32,
    )
    expected = _bf16(found.numpy() + _bf16(values["fc2.bias"]))
    _close(executable.value("logits"), expected)


@pytest.mark.parametrize(("recipe", "net", "fast"), turns(ACTIVE, [*NETS], FASTS))
def test_every_recipe_gives_the_bits_of_the_reference(net: str, recipe: Recipe, fast: Fast) -> None:
    graph = step_of(NETS[net], policy_of(NETS[net], recipe, FP4 if recipe == "nvfp4" else HYBRID))
    assert_gives_the_bits_of_the_reference(graph, started(graph, NETS[net]), fast)


@pytest.mark.parametrize("net", ["convolutions", "mlp", "transformer"])
@pytest.mark.parametrize("recipe", ACTIVE)
def test_scales_leave_no_trace_in_gradients(net: str, recipe: Recipe) -> None:
    """A wrong axis or a scale left in would turn the gradients away from those of float32."""
    layer, grads = FP4 if recipe == "nvfp4" else E4M3, {}
    for name, policy in (
        ("float32", policy_of(NETS[net], "none", LayerPolicy())),
        ("scaled", policy_of(NETS[net], recipe, layer)),
    ):
        executable = compile_graph(step_of(NETS[net], policy, 32))
        _fill(executable, NETS[net])
        fill(executable, {LEARNING_RATE: 0.0, INVERSE_SCALE: 2.0**20, LOSS_SCALE: 2.0**-20})
        for _ in range(12):  # a delayed scale of gradients fits once those after it do
            executable.forward_backward()
            executable.apply_updates()
        grads[name] = {
            key: executable.value(key).copy()
            for key, _ in executable.graph.outputs
            if key.startswith("grad:") and key.endswith("weight")
        }
    for key, exact in grads["float32"].items():
        found = grads["scaled"][key]
        cosine = np.vdot(found, exact) / np.linalg.norm(found) / np.linalg.norm(exact)
        ratio = np.linalg.norm(found) / np.linalg.norm(exact)
        least = 0.8 if recipe == "nvfp4" else 0.98
        assert cosine > least and abs(ratio - 1) < 0.25, (key, cosine, ratio)


@pytest.mark.parametrize("recipe", [recipe for recipe in ACTIVE if recipe != "delayed"])
def test_a_power_of_two_on_the_input_comes_out_of_a_product_exactly(recipe: Recipe) -> None:
    model = mlp((96, 40), activation="tanh")
    policy = policy_of(model, recipe, FP4 if recipe == "nvfp4" else E4M3)
    executable = compile_graph(apply_policy(trace_forward(model, 8), policy))
    fill(executable, model.init(np.random.default_rng(1)))
    executable.arrays["fc1.bias"][...] = 0.0
    x = np.random.default_rng(2).standard_normal((8, 96)).astype(np.float32)
    results = []
    for power in (1.0, 2.0**-14):
        executable.arrays["images"][...] = x * np.float32(power)
        executable.forward_backward()
        results.append(executable.value("logits") / np.float32(power))
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0]).max() > 0.1


def test_rowwise_scales_the_row_that_each_product_keeps() -> None:
    model = lenet5()
    graph = step_of(model, policy_of(model, "rowwise"))
    shapes = {
        (node.layer, node.role, graph.nodes[node.inputs[0]].shape): node.shape
        for node in graph.nodes
        if node.op.name == "amax"
    }
    assert shapes["conv2", "fprop", (8, 6, 14, 14)] == (8, 1, 1, 1)
    assert shapes["conv2", "fprop", (16, 6, 5, 5)] == (16, 1, 1, 1)
    assert shapes["conv2", "dgrad", (16, 6, 5, 5)] == (1, 6, 1, 1)
    assert shapes["conv2", "dgrad", (8, 16, 10, 10)] == (8, 1, 1, 1)
    assert shapes["conv2", "wgrad", (8, 16, 10, 10)] == (1, 16, 1, 1)
    assert shapes["conv2", "wgrad", (8, 6, 14, 14)] == (1, 6, 1, 1)
    assert shapes["fc2", "fprop", (84, 120)] == (84, 1)
    assert shapes["fc2", "dgrad", (84, 120)] == (1, 120)
    assert shapes["fc2", "wgrad", (8, 120)] == (1, 120)


def test_blocks_run_along_the_contraction_of_each_product() -> None:
    model = lenet5()
    graph = step_of(model, policy_of(model, "mx"))
    shapes = {
        (node.layer, node.role, graph.nodes[node.inputs[0]].shape): node.shape
        for node in graph.nodes
        if node.op.name == "amax"
    }
    assert shapes["conv2", "fprop", (8, 6, 14, 14)] == (8, 1, 14, 14)
    assert shapes["conv2", "fprop", (16, 6, 5, 5)] == (16, 1, 5, 5)
    assert shapes["conv2", "dgrad", (16, 6, 5, 5)] == (1, 6, 5, 5)
    assert shapes["conv2", "dgrad", (8, 16, 10, 10)] == (8, 1, 10, 10)
    assert shapes["conv2", "wgrad", (8, 16, 10, 10)] == (1, 16, 10, 10)
    assert shapes["conv2", "wgrad", (8, 6, 14, 14)] == (1, 6, 14, 14)
    assert shapes["fc2", "fprop", (84, 120)] == (84, 4)
    assert shapes["fc2", "dgrad", (84, 120)] == (3, 120)
    assert shapes["fc2", "wgrad", (8, 120)] == (1, 120)


def _tail_loss(layer: LayerPolicy, recipe: Recipe, seed: int) -> float:
    """Train ten tanh layers on eight Gaussian clouds; return the mean of the last 20 losses."""
    model = mlp((16, *[32] * 9, 8), activation="tanh")
    executable = compile_graph(step_of(model, policy_of(model, recipe, layer), 64), seed=seed)
    fill(executable, model.init(np.random.default_rng(seed)))
    fill(executable, {LOSS_SCALE: 1.0, INVERSE_SCALE: 1.0, LEARNING_RATE: 0.05})
    rng = np.random.default_rng(seed)
    centres, losses = 1.5 * rng.standard_normal((8, 16)), []
    for _ in range(150):
        labels = rng.integers(0, 8, 64)
        images = centres[labels] + rng.standard_normal((64, 16))
        fill(executable, {"images": images, TARGETS: np.eye(8)[labels]})
        executable.forward_backward()
        executable.apply_updates()
        losses.append(float(executable.value("loss")))
    return float(np.mean(losses[-20:]))


@pytest.mark.parametrize("seed", [0, 1])
def test_scaling_recovers_gradients_that_underflow_in_float8(seed: int) -> None:
    exact = _tail_loss(LayerPolicy(), "none", seed)
    assert _tail_loss(E4M3, "none", seed) > exact + 0.5
    for recipe in ("current", "delayed", "mx"):
        assert abs(_tail_loss(E4M3, recipe, seed) - exact) < 0.2, recipe
