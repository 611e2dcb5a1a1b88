"""The file for torchao: exactly the linears it names, by torchao itself, once."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torchao")

import torch
from torch import nn

from policysearch.emulator.compile import compile_graph
from policysearch.export import torchao
from policysearch.nn.models import mlp
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE, TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import PRESETS, preset
from policysearch.policy.product_words import ROLES, with_words
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast
from policysearch.train.step import trace_step
from tests.test_export_modules import load

pytestmark = [pytest.mark.torchao, pytest.mark.filterwarnings("ignore")]
load = load  # the fixture
MODEL = mlp((64, 32, 48, 10))


def policy_of(*low: str, recipe: Any = "current") -> Policy:
    base = preset("bfloat16", MODEL.layer_names)
    made = base.with_layers(dict.fromkeys(low, uniform_layer("float8_e4m3fn")))
    return replace(made, scaling=Scaling(recipe))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 32), nn.Linear(32, 48), nn.Linear(48, 10)

    def forward(self, x: Any) -> Any:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def exported(policy: Policy) -> Any:
    space: dict[str, Any] = {"__name__": "file"}
    exec(compile(torchao.export(policy, MODEL), "file.py", "exec"), space)
    return space


@pytest.mark.parametrize("recipe", ["current", "rowwise"])
def test_the_named_linears_are_converted_and_no_others(recipe: str) -> None:
    file = exported(policy_of("fc2", recipe=recipe))
    module = file["convert"](Net(), emulate=True)
    assert [type(x).__name__ for x in module.children()] == ["Linear", "Float8Linear", "Linear"]
    granularity = str(module.fc2.config.cast_config_input.scaling_granularity)
    assert ("AXISWISE" in granularity) == (recipe == "rowwise")
    module(torch.randn(16, 64)).sum().backward()
    assert module.fc2.weight.grad.abs().max() > 0
    with pytest.raises(ValueError, match="expected each a torch"):
        file["convert"](module)


def test_sizes_that_a_gpu_refuses_stay_wide_and_are_said() -> None:
    policy = policy_of("fc1", "fc3")
    assert torchao.runs(policy, MODEL).layer("fc3").compute == "bfloat16"
    assert any(
        line.startswith("layer fc3: torchao does not compute it in float8_e4m3fn (torchao wants")
        and " 16, and its weight is 10 x 48); it runs with" in line
        for line in torchao.losses(policy, MODEL)
    )
    with pytest.raises(ValueError, match="multiples of 16"):
        exported(policy_of("fc1"))["is_low"](nn.Linear(60, 10), "fc1")


def test_a_missing_linear_is_named(load: Callable[..., Any]) -> None:
    file = exported(policy_of("fc1"))
    with pytest.raises(ValueError, match=r"\['fc1'\]"):
        file["convert"](nn.Sequential(nn.Linear(64, 32)))


WIDE = "bfloat16"
COMBINATIONS = [
    tuple(role for role, low in zip(ROLES, chosen, strict=True) if low)
    for chosen in itertools.product((True, False), repeat=3)
]


def layer_with(low: tuple[str, ...], recipe: str, wide: str = WIDE) -> LayerPolicy:
    whole = PRESETS["torchao.tensorwise" if recipe == "current" else "torchao.rowwise"].layer
    words = " ".join(f"{role}={wide}" for role in ROLES if role not in low)
    return with_words(replace(whole, output=wide, wgrad=wide), words or "same")


def prepared(policy: Policy, asked: Policy, seed: int, fast: Fast | None) -> tuple[Any, ...]:
    """Return a step of the emulator that ran, the net that torchao converted, and their batch.

    The step obeys `policy`, the file is that of `asked`.
    """
    model, rng = mlp((64, 96, 32), "tanh"), np.random.default_rng(seed)
    traced = trace_step(model, "softmax_cross_entropy", Optimizer("sgd"), 32)
    step = compile_graph(apply_policy(traced, policy), fast=fast)
    net = nn.Sequential(OrderedDict(fc1=nn.Linear(64, 96), act=nn.Tanh(), fc2=nn.Linear(96, 32)))
    for name, value in model.init(rng).items():
        noise = torch.from_numpy(rng.standard_normal(value.shape).astype(np.float32)).bfloat16()
        step.arrays[name][...] = value + 0.1 * noise.float().numpy()
        net.get_parameter(name).data = torch.from_numpy(step.arrays[name].copy())
    x = torch.from_numpy(rng.standard_normal((32, 64)).astype(np.float32)).bfloat16().float()
    y = rng.integers(0, 32, 32)
    step.arrays["images"][...], step.arrays[TARGETS][...] = x, np.eye(32)[y]
    step.arrays[LOSS_SCALE][...] = step.arrays[INVERSE_SCALE][...] = 1.0
    step.forward_backward()
    space: dict[str, Any] = {"__name__": "file"}
    exec(compile(torchao.export(asked, model), "file.py", "exec"), space)
    space["convert"](net, emulate=True)
    return step, net, x, y


def emulated_and_converted(policy: Policy) -> tuple[Any, dict[str, Any]]:
    """Return a step of the emulator, and torchao's values of the same step, emulated on a CPU."""
    step, net, x, y = prepared(policy, policy, 0, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(x)
    torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(y)).backward()
    return step, {"logits": logits} | {f"grad:{n}": p.grad for n, p in net.named_parameters()}


@pytest.mark.parametrize("recipe", ["current", "rowwise"])
@pytest.mark.parametrize("low", COMBINATIONS, ids="+".join)
def test_every_combination_of_products_is_what_torchao_computes(
    low: tuple[str, ...], recipe: str
) -> None:
    model = mlp((64, 96, 32), "tanh")
    names = model.layer_names
    base = preset("torchao.tensorwise" if recipe == "current" else "torchao.rowwise", names)
    policy = base.with_layers(dict.fromkeys(names, layer_with(low, recipe)), "mine")
    if not low:  # torch adds the bias of its own linear before the one rounding
        policy = replace(policy, bias="fused")
    assert not [line for line in torchao.losses(policy, model) if line.startswith("layer fc")]
    step, theirs = emulated_and_converted(policy)
    for name, values in theirs.items():
        assert values.count_nonzero() > values.numel() / 2
        same = step.value(name) == values.detach().float().numpy()
        assert same.mean() > 0.99, name
    # broken on purpose: another combination has other bits
    other = emulated_and_converted(base if low != ROLES else preset("bfloat16", names))[1]
    assert any((other[name] != values).float().mean() > 0.1 for name, values in theirs.items())


def products(step: Any, layer: Any, dtype: torch.dtype) -> dict[str, tuple[Any, Any]]:
    """Return what the three products of fc2 are here, and in torchao from the same operands."""
    values, nodes = step._values, step.graph.nodes
    back = next(node for node in nodes if node.op.name == "tanh_grad")
    loss = next(node.id for node in nodes if (node.layer, node.role) == ("loss", "dgrad"))
    x = torch.from_numpy(values[back.inputs[1]].copy()).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        out = layer(x)
    out.backward(torch.from_numpy(values[loss].copy()).to(out.dtype))
    ours = step.value("logits"), values[back.inputs[0]], step.value("grad:fc2.weight")
    theirs = (each.detach().float().numpy() for each in (out, x.grad, layer.weight.grad))
    return dict(zip(ROLES, zip(ours, theirs, strict=True), strict=True))


@pytest.mark.parametrize("recipe", ["current", "rowwise"])
@pytest.mark.parametrize("low", COMBINATIONS, ids="+".join)
def test_every_product_is_within_a_millionth_of_its_largest_value(
    low: tuple[str, ...], recipe: str
) -> None:
    """In float32. Rounded to bfloat16 what is summed in another order may be its neighbour."""
    names = mlp((64, 96, 32), "tanh").layer_names
    base = preset("torchao.tensorwise" if recipe == "current" else "torchao.rowwise", names)
    base = base if low else replace(base, bias="fused")
    asked = base.with_layers(dict.fromkeys(names, layer_with(low, recipe)))
    for kind, seed in itertools.product(("float32", WIDE), range(3)):
        rows = dict.fromkeys(names, uniform_layer(kind))
        rows |= dict.fromkeys(("fc1", "fc2"), layer_with(low, recipe, kind))
        step, net, *_ = prepared(base.with_layers(rows), asked, seed, "off")
        for role, (ours, theirs) in products(step, net.fc2, getattr(torch, kind)).items():
            bound = 1e-6 * np.abs(theirs).max() + (np.abs(theirs) * 2.0**-7) * (kind == WIDE)
            assert (np.abs(ours - theirs) <= bound).all(), (kind, seed, role)
            assert (ours == theirs).mean() > 0.98 or kind != WIDE


def in_eight(values: Any, dtype: torch.dtype) -> Any:
    """Return values as torchao casts them, with one scale."""
    from torchao.float8.float8_utils import amax_to_scale, to_fp8_saturated

    given = torch.from_numpy(np.ascontiguousarray(values))
    scale = amax_to_scale(given.abs().max(), dtype, round_scales_to_power_of_2=False)
    return to_fp8_saturated(given * scale, dtype).float().numpy()


def test_a_whole_step_differs_where_an_operand_lies_halfway() -> None:
    """Sums in another order move an operand by less than 1e-6, which may be to the other side."""
    names, apart = mlp((64, 96, 32), "tanh").layer_names, 0
    for low, seed in itertools.product(COMBINATIONS, range(3)):
        base = preset("torchao.tensorwise", names)
        base = base if low else replace(base, bias="fused")
        asked = base.with_layers(dict.fromkeys(names, layer_with(low, "current")))
        rows = dict.fromkeys(names, uniform_layer("float32"))
        rows |= dict.fromkeys(("fc1", "fc2"), layer_with(low, "current", "float32"))
        step, net, x, y = prepared(base.with_layers(rows), asked, seed, "off")
        for part in (hidden := net.fc1(x), act := net.act(hidden), out := net.fc2(act)):
            part.retain_grad()
        torch.nn.functional.cross_entropy(out, torch.from_numpy(y)).backward()
        back = next(node for node in step.graph.nodes if node.op.name == "tanh_grad")
        loss = next(n.id for n in step.graph.nodes if (n.layer, n.role) == ("loss", "dgrad"))
        ours = step._values[back.inputs[1]], step._values[back.id], step._values[loss]
        theirs = act.detach().numpy(), hidden.grad.numpy(), out.grad.numpy()
        dtypes = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e5m2
        moved = sum(
            int((in_eight(a, dtype) != in_eight(b, dtype)).sum())
            for a, b, dtype in zip(ours, theirs, dtypes, strict=True)
        )
        apart += moved > 0
        results = {"logits": out} | {f"grad:{n}": p.grad for n, p in net.named_parameters()}
        for name, values in results.items():
            gap = np.abs(step.value(name) - values.detach().numpy()).max()
            assert moved or gap <= 1e-6 * values.abs().max().item(), (low, seed, name)
    assert apart <= 6  # of 24


def test_gw_hp_is_a_recipe_by_its_name() -> None:
    model = mlp((64, 96, 32), "tanh")
    policy = preset("torchao.rowwise_with_gw_hp", model.layer_names)
    step, theirs = emulated_and_converted(policy)
    for name, values in theirs.items():
        assert (step.value(name) == values.detach().float().numpy()).mean() > 0.99, name
    text = torchao.export(policy, model)
    assert "'fc2': 'rowwise_with_gw_hp'" in text
    assert torchao.read(text, model, "file").policy.layer("fc2") == policy.layer("fc2")
