"""Training without master weights: the optimizer's bits against torch.optim on such tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from policysearch.emulator.compile import Step, compile_graph
from policysearch.formats import format_named
from policysearch.nn.models import mlp
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, STEP_NUMBER, TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import quantise
from policysearch.train.gradients import UNCLIPPED, Clipping
from policysearch.train.step import trace_step

STEPS, BATCH, RATE = 20, 8, 0.05
NET = mlp((64, 64, 64), "tanh")
"""Sizes are multiples of a vector's length: what is left over torch computes in another way, with
the product rounded before the sum."""

SGD: dict[str, dict[str, Any]] = {
    "plain": {"momentum": 0.0},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.3},
    "weight decay": {"momentum": 0.9, "weight_decay": 0.013},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.013},
}
ADAM: dict[str, dict[str, Any]] = {
    "adam": {"weight_decay": 0.013},
    "adamw": {"weight_decay": 0.013},
    "betas": {"betas": (0.8, 0.95), "eps": 1e-3},
}


def pure(
    name: str, order: Literal["fused", "eager"], scalars: Literal["float32", "storage"]
) -> Policy:
    """Return the policy where everything, the optimizer's state too, is in format `name`."""
    layers = {layer: uniform_layer(name, param=name) for layer in NET.layer_names}
    return replace(
        preset("apex.O3", NET.layer_names).with_layers(layers),
        optimizer_state=name,
        optimizer_order=order,
        optimizer_scalars=scalars,
    )


def optimizer_of(given: dict[str, Any], kind: str) -> Optimizer:
    changes = {name: given[name] for name in given if name not in ("betas", "eps", "momentum")}
    betas = given.get("betas", (0.9, 0.999))
    made = (
        Optimizer("adam", beta1=betas[0], beta2=betas[1], epsilon=given.get("eps", 1e-8), **changes)
        if kind.startswith("adam") or kind == "betas"
        else Optimizer(
            "momentum" if given["momentum"] else "sgd", momentum=given["momentum"] or 0.9, **changes
        )
    )
    return replace(made, kind="adamw") if kind == "adamw" else made


def started(
    policy: Policy, optimizer: Optimizer, name: str, clipping: Clipping = UNCLIPPED
) -> Step:
    """Return the compiled step with random parameters of the format."""
    step = trace_step(NET, "softmax_cross_entropy", optimizer, BATCH, clipping)
    executable = compile_graph(apply_policy(step, policy))
    for key, value in NET.init(np.random.default_rng(0)).items():
        executable.arrays[key][...] = quantise(value, format_named(name))
    executable.arrays[LOSS_SCALE][...] = executable.arrays[INVERSE_SCALE][...] = 1.0
    executable.arrays[LEARNING_RATE][...] = RATE
    return executable


def both_updated(executable: Step, tensors: dict[str, Any], theirs: Any) -> Iterator[int]:
    """Take STEPS steps; gradients come from the emulator. Yield how many parameters differ."""
    import torch

    rng = np.random.default_rng(1)
    for step in range(STEPS):
        executable.arrays[STEP_NUMBER][...] = step + 1
        executable.arrays["images"][...] = rng.standard_normal((BATCH, 64))
        executable.arrays[TARGETS][...] = np.eye(64)[rng.integers(0, 64, BATCH)]
        executable.forward_backward()
        for key, tensor in tensors.items():
            grad = np.ascontiguousarray(executable.value(f"grad:{key}"))
            assert np.count_nonzero(grad) > grad.size / 2, key
            tensor.grad = torch.from_numpy(grad.copy()).to(tensor.dtype)
        executable.apply_updates()
        theirs.step()
        kept = {key: tensor.detach().float().numpy() for key, tensor in tensors.items()}
        yield sum(int((executable.arrays[key] != value).sum()) for key, value in kept.items())


def torch_tensors(executable: Step, name: str) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    names = [spec.name for spec in NET.parameters()]
    kept = {key: np.array(executable.arrays[key], order="C") for key in names}
    assert sum(value.size for value in kept.values()) >= 5000
    return {key: torch.tensor(value).to(getattr(torch, name)) for key, value in kept.items()}


@pytest.mark.torch
@pytest.mark.parametrize("kind", SGD)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_sgd_equals_torch_on_a_cpu_bit_for_bit(name: str, kind: str) -> None:
    torch = pytest.importorskip("torch")
    executable = started(pure(name, "eager", "storage"), optimizer_of(SGD[kind], kind), name)
    tensors = torch_tensors(executable, name)
    start = {key: tensor.clone() for key, tensor in tensors.items()}
    theirs = torch.optim.SGD(tensors.values(), lr=RATE, **SGD[kind])
    assert list(both_updated(executable, tensors, theirs)) == [0] * STEPS
    assert all((tensors[key] != value).float().mean() > 0.5 for key, value in start.items())


@pytest.mark.torch
@pytest.mark.parametrize("kind", ADAM)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_adam_in_single_operations_is_torchs(name: str, kind: str) -> None:
    """In float16 the default epsilon is 0, and torch divides 0 by 0 as the emulator does.

    torch's `lerp_` multiplies and adds in one rounding, which moves a bit here and there.
    """
    torch = pytest.importorskip("torch")
    executable = started(pure(name, "eager", "storage"), optimizer_of(ADAM[kind], kind), name)
    tensors = torch_tensors(executable, name)
    build = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    theirs = build(tensors.values(), lr=RATE, **ADAM[kind])
    steps = both_updated(executable, tensors, theirs)
    if name == "float16" and kind != "betas":
        next(steps), next(steps)
        for key, tensor in tensors.items():
            lost = np.isnan(tensor.float().numpy())
            assert lost.any()
            np.testing.assert_array_equal(lost, np.isnan(executable.arrays[key]))
        return
    assert max(steps) <= 1e-3 * sum(tensor.numel() for tensor in tensors.values())


@pytest.mark.torch
@pytest.mark.parametrize("kind", ADAM)
def test_adam_in_one_pass_is_torchs_fused(kind: str) -> None:
    """The rounded moments are read in the next step only; in float16 they train, too."""
    torch = pytest.importorskip("torch")
    executable = started(
        pure("bfloat16", "fused", "float32"), optimizer_of(ADAM[kind], kind), "bfloat16"
    )
    tensors = torch_tensors(executable, "bfloat16")
    build = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
    theirs = build(tensors.values(), lr=RATE, fused=True, **ADAM[kind])
    steps = both_updated(executable, tensors, theirs)
    assert max(steps) <= 1e-3 * sum(tensor.numel() for tensor in tensors.values())


@pytest.mark.torch
@pytest.mark.parametrize("limit", [0.37, 1e3])
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_clipping_is_torchs_bit_for_bit(name: str, limit: float) -> None:
    """Norms of single tensors, their norm and the factor all have the format of the gradients."""
    torch = pytest.importorskip("torch")
    executable = started(pure(name, "eager", "storage"), Optimizer("sgd"), name, Clipping(limit))
    tensors = torch_tensors(executable, name)
    sgd, norms = torch.optim.SGD(tensors.values(), lr=RATE), []

    def step() -> None:
        exact = sum(float((x.grad.double() ** 2).sum()) for x in tensors.values()) ** 0.5
        norm = torch.nn.utils.clip_grad_norm_(tensors.values(), limit)
        norms.append((norm.item(), exact))
        sgd.step()

    assert list(both_updated(executable, tensors, SimpleNamespace(step=step))) == [0] * STEPS
    assert all(norm != exact and (norm > limit) == (limit < 1) for norm, exact in norms)


@pytest.mark.torch
@pytest.mark.parametrize("limit", [0.0123, 1e3])
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_clipping_by_value_is_torchs_bit_for_bit(name: str, limit: float) -> None:
    """The limit has the format of the gradients, in which 0.0123 is no number."""
    torch = pytest.importorskip("torch")
    clipping = Clipping(value=limit)
    executable = started(pure(name, "eager", "storage"), Optimizer("sgd"), name, clipping)
    tensors = torch_tensors(executable, name)
    sgd, moved = torch.optim.SGD(tensors.values(), lr=RATE), []

    def step() -> None:
        before = [x.grad.clone() for x in tensors.values()]
        torch.nn.utils.clip_grad_value_(tensors.values(), limit)
        pairs = zip(tensors.values(), before, strict=True)
        moved.append(any(bool((x.grad != grad).any()) for x, grad in pairs))
        sgd.step()

    assert list(both_updated(executable, tensors, SimpleNamespace(step=step))) == [0] * STEPS
    assert moved == [limit < 1] * STEPS


def test_a_norm_beyond_float16_leaves_no_gradient() -> None:
    """As torch.nn.utils.clip_grad_norm_ has it: limit / infinity is 0, and nothing moves."""
    for order, moves in (("eager", False), ("fused", True)):
        policy = pure("float16", order, "float32")  # type: ignore[arg-type]
        executable = started(policy, Optimizer("sgd"), "float16", Clipping(1.0))
        executable.arrays["images"][...] = np.random.default_rng(0).random((BATCH, 64))
        executable.arrays[TARGETS][...] = np.eye(64)[:BATCH]
        before = executable.arrays["fc1.weight"].copy()
        for scale in (1.0, 2.0**15):
            executable.arrays[LOSS_SCALE][...] *= scale
            executable.forward_backward()
            grads = [executable.value(f"grad:{spec.name}") for spec in NET.parameters()]
            executable.arrays[LOSS_SCALE][...] /= max(np.abs(grad).max() for grad in grads)
        assert all(np.isfinite(grad).all() for grad in grads)
        assert sum(float(np.vdot(grad, grad)) for grad in grads) > 65504.0**2
        executable.apply_updates()
        assert (executable.arrays["fc1.weight"] != before).any() == moves


@pytest.mark.torch
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_gradients_are_unscaled_where_they_lie(name: str) -> None:
    """In the eager order; a fused optimizer unscales in float32 on the way."""
    torch = pytest.importorskip("torch")
    scale, found = 3000.0, {}
    for order in ("eager", "fused"):
        policy = replace(pure(name, order, "float32"), loss_scale=LossScale("fixed", scale))
        executable = started(policy, Optimizer("sgd"), name)
        rng = np.random.default_rng(1)
        executable.arrays["images"][...] = rng.standard_normal((BATCH, 64))
        executable.arrays[TARGETS][...] = np.eye(64)[rng.integers(0, 64, BATCH)]
        executable.arrays[LOSS_SCALE][...] = scale
        for inverse in (1.0, 1.0 / scale):
            executable.arrays[INVERSE_SCALE][...] = inverse
            executable.forward_backward()
            found[order, inverse] = executable.value("grad:fc1.weight").copy()
    scaled = torch.from_numpy(found["eager", 1.0]).to(getattr(torch, name))
    weight = torch.zeros_like(scaled, requires_grad=True)
    weight.grad = scaled.clone()
    if name == "bfloat16":
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.ones(()))
        scaler.unscale_(torch.optim.SGD([weight], lr=RATE))
    else:  # which GradScaler refuses and Apex does
        weight.grad *= np.float32(1.0 / scale)
    unscaled = weight.grad.float().numpy()
    assert np.count_nonzero(unscaled) > unscaled.size / 2
    np.testing.assert_array_equal(found["eager", 1.0 / scale], unscaled)
    assert (found["fused", 1.0 / scale] != unscaled).mean() > 0.5
