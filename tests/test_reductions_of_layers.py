"""Formats in which gradients of a layer are summed over micro-batches and reduced over devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.cost.devices import DEVICES
from policysearch.cost.memory import node_bytes
from policysearch.cost.parallel.collectives import (
    Gradient,
    interconnect,
    messages,
    reduction_seconds,
)
from policysearch.cost.price import step_price
from policysearch.data.datasets import load_dataset
from policysearch.export import deepspeed, fsdp2
from policysearch.export.targets import target_named
from policysearch.nn.models import mlp
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import LayerPolicy, Policy, from_json
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.space.model_space import make_space
from policysearch.space.parallel import ParallelSection, spread_space
from policysearch.space.rules import rules_from_data
from policysearch.space.section import SpaceSection
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError

TASK = Task(
    model="mlp",
    data="digits",
    widths=(24, 24),
    optimizer="sgd",
    batch_size=16,
    steps=10,
    tail_steps=4,
    learning_rate=0.5,
    accumulation_steps=4,
)
NET = mlp((256, 4096, 4096, 10), "relu")
"""Large enough that bytes, not the latency of one more message, set the time."""
FORMATS = {
    "fc1": ("bfloat16", None),
    "fc2": (None, "bfloat16"),
    "fc3": ("float16", "float8_e5m2"),
}


def set_to(policy: Policy, formats: dict[str, tuple[str | None, str | None]]) -> Policy:
    changed = {
        name: replace(policy.layer(name), gradient_sum=summed, all_reduce=reduced)
        for name, (summed, reduced) in formats.items()
    }
    return policy.with_layers(changed)


def trained_in_torch(formats: dict[str, tuple[str | None, str | None]]) -> dict[str, Any]:
    """Return the parameters after the steps of TASK, by additions and casts of torch alone."""
    torch = pytest.importorskip("torch")
    dataset = load_dataset("digits")
    model = TASK.build_model(dataset)
    params = {
        name: torch.from_numpy(np.array(x)).requires_grad_()
        for name, x in initial_parameters(model, 0).items()
    }
    inputs, labels = (torch.from_numpy(np.array(x)) for x in (*dataset.train[0], dataset.train[1]))

    def dtype(name: str, place: int) -> object:
        return getattr(torch, formats[name.partition(".")[0]][place] or "float32")

    for examples in batch_order(TASK, dataset, 0):
        sums = {name: torch.zeros_like(x, dtype=dtype(name, 0)) for name, x in params.items()}
        for part in np.split(examples, TASK.accumulation_steps):
            x = inputs[part].flatten(1)
            for i in (1, 2, 3):
                x = x @ params[f"fc{i}.weight"].T + params[f"fc{i}.bias"]
                x = getattr(torch, TASK.activation)(x) if i < 3 else x
            loss = torch.nn.functional.cross_entropy(x, labels[part])
            grads = torch.autograd.grad(loss / TASK.accumulation_steps, [*params.values()])
            for name, grad in zip(params, grads, strict=True):
                sums[name] += grad.to(sums[name].dtype)
        with torch.no_grad():
            for name, x in params.items():
                x -= TASK.learning_rate * sums[name].float().to(dtype(name, 1)).float()
    return {name: x.detach().numpy() for name, x in params.items()}


@pytest.mark.torch
def test_sums_and_reductions_are_those_of_torch() -> None:
    """Each layer in its own two formats; what they change is fifty times what is left."""
    dataset = load_dataset("digits")
    wide = preset("float32", TASK.build_model(dataset).layer_names)
    expected = trained_in_torch(FORMATS)
    plain = train(TASK, wide, 0, dataset=dataset).params
    ours = train(TASK, set_to(wide, FORMATS), 0, dataset=dataset).params
    for name, wanted in expected.items():
        apart = np.abs(ours[name] - wanted).mean()
        assert apart < 0.02 * np.abs(plain[name] - wanted).mean(), name


def graph_of(policy: Policy):  # type: ignore[no-untyped-def]
    return apply_policy(trace_step(NET, "softmax_cross_entropy", Optimizer("adam"), 32), policy)


@pytest.mark.parametrize("gradients", ["tensors", "buckets", "combined"])
@pytest.mark.parametrize("zero", [0, 2])
def test_a_reduction_said_by_every_layer_costs_what_the_policys_does(
    gradients: str, zero: int
) -> None:
    """And one layer's alone, of which the wire has the more bytes, lies between."""
    parallel = Parallel(8, zero=zero, gradients=gradients, overlap=False)  # type: ignore[arg-type]
    wide = replace(preset("float32", NET.layer_names), parallel=parallel)
    whole = replace(wide, all_reduce="bfloat16")
    said = set_to(wide, dict.fromkeys(NET.layer_names, (None, "bfloat16")))
    one = set_to(wide, {"fc2": (None, "bfloat16")})
    priced = [
        step_price(graph_of(policy), "RTX-4090", "torch.eager", policy)
        for policy in (wide, one, said, whole)
    ]
    seconds = [price.time.step_seconds for price in priced]
    assert seconds[2] == seconds[3] < seconds[1] < seconds[0]
    assert priced[2].memory == priced[3].memory


def test_the_wire_has_the_bytes_of_each_format() -> None:
    """Two messages of one ring, each with its own bytes; none holds two formats."""
    link = interconnect(DEVICES["H100-SXM5"], 8)
    parallel = Parallel(8, gradients="combined", overlap=False)
    sent = messages([Gradient(10**6, 1.0), Gradient(10**6, 2.0, "bfloat16")], parallel)
    assert [(m.elements, m.format) for m in sent] == [(10**6, ""), (10**6, "bfloat16")]
    total = link.seconds("all_reduce", 4e6) + link.seconds("all_reduce", 2e6)
    found = reduction_seconds(sent, parallel, "float32", 3.0, link)
    assert list(found) == pytest.approx([total, total])


def test_the_sum_is_held_in_its_format() -> None:
    step = trace_step(NET, "softmax_cross_entropy", Optimizer("sgd"), 32, micro_batches=2)
    wide = preset("float32", NET.layer_names)
    held = []
    for name in (None, "bfloat16"):
        graph = apply_policy(step, set_to(wide, {"fc2": (name, None)}))
        sums = [node for node in graph.nodes if node.op.name == "gradient_buffer"]
        held.append({node.name: node_bytes(node) for node in sums})
    parts = {name: held[0][name] / held[1][name] for name in held[0]}
    assert {name for name, part in parts.items() if part == 2} == {
        name for name in parts if ".fc2." in name
    }
    assert {*parts.values()} == {1, 2}


RULE = {
    "name": "reduced",
    "match": {"layer": "fc2"},
    "all_reduce": "bfloat16",
    "gradient_sum": "bfloat16",
    "search": True,
}


def test_a_rule_says_and_searches_them() -> None:
    rules = rules_from_data({"rules": [RULE]}, "study")
    section = SpaceSection(("float32", "bfloat16"), base="float32")
    space = spread_space(make_space(section, NET, rules), ParallelSection(8))
    assert space.choices()["rule.reduced"] == ("on", "off")
    on, off = (space.policy({"rule.reduced": value}) for value in ("on", "off"))
    assert (on.reductions, off.reductions) == ({"fc2": "bfloat16"}, {})
    assert on.summed("fc2") == "bfloat16" and on.summed("fc1") == "float32"
    assert space.project(on)["rule.reduced"] == "on" and on.digest != off.digest
    assert from_json(on.to_json()) == on
    with pytest.raises(InputError, match="all_reduce: unknown format 'fp7'"):
        LayerPolicy(all_reduce="fp7")


def test_targets_say_what_they_leave_out() -> None:
    policy = set_to(
        preset("torch.autocast.bfloat16", NET.layer_names), {"fc2": ("float16", "bfloat16")}
    )
    lines = target_named("torch").losses(policy, NET)
    assert "layer fc2: gradients are reduced as float32, not bfloat16" in lines
    assert any("layer fc2: gradients are summed as torch's .grad, in float32" in x for x in lines)
    (line,) = [x for x in fsdp2.losses(policy, NET) if x.startswith("layer fc2")]
    assert "gradient_sum" in line and "all_reduce" not in line


def test_deepspeed_sums_all_gradients_in_one_dtype() -> None:
    wide = replace(preset("torch.autocast.bfloat16", NET.layer_names), all_reduce="bfloat16")
    held = [name for name in NET.layer_names if NET.parameters_of(name)]
    policy = set_to(wide, dict.fromkeys(held, ("bfloat16", None)))
    text = deepspeed.export(policy, NET)
    assert json.loads(text)["data_types"] == {"grad_accum_dtype": "bf16"}
    found = deepspeed.read(text, NET, "file.json").policy
    assert {found.summed(name) for name in held} == {"bfloat16"}
    assert not [x for x in deepspeed.losses(policy, NET) if "gradient_sum" in x]
    mixed = set_to(wide, {"fc1": ("bfloat16", None)})
    assert any("gradient_sum" in line for line in deepspeed.losses(mixed, NET))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_wrap_of_fsdp2_is_reduced_in_its_own_format(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = mlp((8, 8, 8, 4))
    wide = replace(preset("float32", model.layer_names), all_reduce="float16")
    policy = set_to(wide, {"fc2": (None, "bfloat16"), "fc3": (None, "float32")})
    text = fsdp2.export(policy, model)
    assert fsdp2.read(text, model, "file.py").policy.reductions == {
        "fc1": "float16",
        "fc2": "bfloat16",
    }
    space: dict[str, object] = {"__name__": "file"}
    exec(compile(text, "file.py", "exec"), space)
    nn = torch.nn
    module = nn.Sequential()
    for name, sides in (("fc1", (8, 8)), ("fc2", (8, 8)), ("fc3", (8, 4))):
        module.add_module(name, nn.Linear(*sides))
    x = torch.randn(16, 8)
    module(x).square().mean().backward()
    wanted = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        sharded = space["shard"](module, mesh)  # type: ignore[operator]
        sharded(x).square().mean().backward()
        dtypes = {"fc1": torch.float16, "fc2": torch.bfloat16, "fc3": torch.float32}
        for name, parameter in sharded.named_parameters():
            grad, own = parameter.grad.full_tensor(), dtypes[name.partition(".")[0]]
            assert torch.equal(grad, wanted[name].to(own).float()), name
    finally:
        torch.distributed.destroy_process_group()
