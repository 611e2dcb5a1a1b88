"""Parameter groups against those of torch.optim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch import api
from policysearch.data.datasets import load_dataset
from policysearch.nn.models import mlp
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.study.specification import load_spec
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.groups import Group
from policysearch.train.schedule import Schedule
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError
from policysearch.verify.verdict import verify

GROUPS = (
    Group(("fc1.*",), frozen=True),
    Group(("fc2.weight", "fc3.b*"), rate_factor=0.3),
    Group(("fc2.bias",), rate_factor=2.5, weight_decay=0.2),
)
FIELDS: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "widths": (24, 24),
    "batch_size": 32,
    "steps": 50,
    "tail_steps": 10,
    "schedule": Schedule("step", period_steps=20, factor=0.5, warmup_steps=5),
}
RATES = {"sgd": 0.1, "momentum": 0.03, "adam": 0.003, "adamw": 0.003}


@pytest.mark.torch
def test_a_group_has_an_optimizer_of_its_own_as_two_of_torch_have() -> None:
    """Muon's hidden matrix, AdamW's head: `verify` steps torch's two side by side."""
    pytest.importorskip("torch")
    head = Group(("fc3.*",), rate_factor=0.1, optimizer="adamw")
    recipe: dict[str, Any] = {"optimizer": "muon", "learning_rate": 0.02, "nesterov": True}
    fields = {**FIELDS, "steps": 10, "tail_steps": 2, "schedule": Schedule()}
    task = Task(groups=(head,), **fields, **recipe)
    model = task.build_model(load_dataset("digits"))
    policy = preset("float32", model.layer_names)
    graph = task.tracing(model, 32).step_graph(policy)
    states = {node.name for node in graph.nodes if node.op.name == "state"}
    assert {"fc1.weight.momentum_buffer", "fc3.weight.m", "fc3.bias.v", "fc2.bias.m"} <= states
    assert "fc3.weight.momentum_buffer" not in states
    verdict = verify(policy, task, steps=10)
    assert verdict.faults == () and verdict.gaps[:4].max() < 5e-6
    assert head.words == "fc3.*: rate x 0.1, adamw"
    plain = replace(task, groups=(replace(head, optimizer=""),))
    assert plain.fingerprint != task.fingerprint
    assert "optimizer" not in plain.to_plain()["groups"][0]
    with pytest.raises(InputError, match="optimizer: 'muonn'; expected one of sgd"):
        Group(("fc3.*",), optimizer="muonn")


@pytest.mark.torch
@pytest.mark.parametrize("name", ["float32", "torch.autocast.bfloat16"])
@pytest.mark.parametrize("decays", ["all", "matrices"])
@pytest.mark.parametrize("kind", RATES)
def test_groups_train_as_those_of_torch(kind: str, decays: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_training import train_in_torch

    recipe: dict[str, Any] = {"optimizer": kind, "learning_rate": RATES[kind], "weight_decay": 0.05}
    task = Task(groups=GROUPS, weight_decay_for=decays, **FIELDS, **recipe)
    dataset = load_dataset("digits")
    model = task.build_model(dataset)
    policy = preset(name, model.layer_names)
    ours = train(task, policy, 0, dataset=dataset)
    initial = initial_parameters(model, 0)
    net = TorchNet(model, policy, initial)
    torch.set_num_threads(1)
    theirs = train_in_torch(net, task, dataset, batch_order(task, dataset, 0))
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=2e-6)
    for key, value in ours.params.items():
        frozen = key.startswith("fc1.")
        assert (value == initial[key]).all() == frozen, key
        own = net.params[key].detach().numpy()
        # a gradient that rounds the other way is a unit of bfloat16 of the step, 4e-3 of the rate
        np.testing.assert_allclose(value, own, rtol=1e-6, atol=1e-6 if name == "float32" else 5e-5)
    # the groups are what the two agree in: without them this task goes elsewhere
    plain = train(replace(task, groups=()), policy, 0, dataset=dataset)
    assert abs(plain.losses / theirs.losses - 1).max() > 0.02


def test_rates_of_groups_are_those_of_torch_to_the_bit() -> None:
    """0.1 * 0.3 is no float32 times another: the product is made in float64 and rounded once."""
    task = Task(groups=GROUPS, **FIELDS, learning_rate=0.1)
    assert task.rate_at(7, 0.3) == 0.1 * 0.3
    twice = float(np.float32(0.1) * np.float32(0.3))
    assert np.float32(task.rate_at(7, 0.3)) != np.float32(twice)
    assert np.float32(task.rate_at(45, 0.3)) == np.float32(0.1 * 0.3 * 0.5**2)


def test_nothing_is_computed_for_what_is_frozen() -> None:
    model = mlp((4, 5, 3))

    def step(*groups: Group) -> Any:
        return trace_step(model, "softmax_cross_entropy", Optimizer("adam"), 2, groups=groups)

    frozen = step(GROUPS[0])
    assert {node.role for node in frozen.nodes if node.layer == "fc1"} == {"input", "fprop"}
    assert not any(node.name.startswith("fc1") for node in frozen.nodes if node.op.name == "state")
    assert "grad:fc1.weight" not in dict(frozen.outputs)
    assert "grad:fc1.weight" in dict(step().outputs)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([Group(("fc9.*",))], r"groups\[0\]: match 'fc9.\*' is no parameter's name; expected one"),
        (
            [Group(("fc1.*",)), Group(("*.weight",))],
            r"groups\[1\]: parameter 'fc1.weight' is in groups\[0\] too",
        ),
        ([Group(("*",), frozen=True)], "every parameter is frozen"),
    ],
)
def test_groups_that_do_not_fit_are_refused_before_training(groups: list[Group], said: str) -> None:
    task = Task(groups=tuple(groups), **FIELDS)
    with pytest.raises(InputError, match=said) as error:
        task.build_model(load_dataset("digits"))
    assert "\n" not in str(error.value)


STUDY = """
[study]
name = "grouped"
[task]
model = "mlp"
data = "digits"
widths = [8]
steps = 20
tail_steps = 5
[[task.groups]]
match = ["*.bias"]
rate_factor = 2
weight_decay = 0
[[task.groups]]
match = ["fc1.weight"]
frozen = true
[cost]
device = "A100-SXM4-40GB"
stack = "torch.compile"
[space]
formats = ["float32", "bfloat16"]
"""


def _study(folder: Path, old: str = "", new: str = "") -> Any:
    (folder / "study.toml").write_text(STUDY.replace(old, new) if old else STUDY)
    return load_spec(folder / "study.toml")


def test_a_study_file_has_groups(tmp_path: Path) -> None:
    spec = _study(tmp_path)
    assert spec.task.groups == (
        Group(("*.bias",), 2.0, 0.0),
        Group(("fc1.weight",), frozen=True),
    )
    assert "groups" not in Task(**FIELDS).to_plain()
    assert spec.task.fingerprint != replace(spec.task, groups=()).fingerprint
    paths = api.export_policy(preset("float32", ("flatten", "fc1", "relu1", "fc2")), spec, tmp_path)
    text = paths[-1].read_text()
    assert "# parameter group, in the script's optimizer: fc1.weight: frozen" in text
    said = api.explain(preset("float32", ("flatten", "fc1", "relu1", "fc2")), spec.task)
    assert "*.bias: rate x 2, weight decay 0" in said.splitlines()[1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate_factor = 2", "rate_factor = -1", r"task.groups\[0\].rate_factor: -1"),
        ("frozen = true", "frozen = true\nrate_factor = 2", r"groups\[1\].frozen: true beside"),
        ('match = ["*.bias"]', "match = []", r"groups\[0\].match: \[\]; expected patterns"),
        ("frozen = true", "lr = 1", "unknown key"),
    ],
)
def test_a_wrong_group_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        _study(tmp_path, old, new)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["torch.autocast.float16", "bfloat16"])
def test_the_exported_file_trains_with_the_same_groups(name: str) -> None:
    pytest.importorskip("torch")
    task = Task(groups=GROUPS, weight_decay=0.05, **FIELDS)
    policy = preset(name, task.build_model(load_dataset("digits")).layer_names)
    found = verify(policy, task, steps=20)
    assert found.faults == () and len(found.losses) == 20
