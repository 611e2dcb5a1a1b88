"""The exported torch file does in torch what the policy says, and what the emulator trained."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import batches, load_dataset
from policysearch.export.torch import export
from policysearch.nn.chain import Chain
from policysearch.nn.models import lenet5, mlp
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.training import train

MODEL = lenet5()
FIXED = LossScale("fixed", 1024.0)
STEPS = 10


def mixed() -> Policy:
    """conv1 bfloat16, conv2 and fc1 float16, fc2 bfloat16, fc3 float32; functions follow."""
    formats = dict.fromkeys(("conv1", "relu1", "pool1"), "bfloat16")
    formats |= dict.fromkeys(("fc2", "relu4"), "bfloat16") | {"fc3": "float32"}
    policy = dataclasses.replace(preset("float16", MODEL.layer_names), loss_scale=FIXED)
    return policy.with_layers({k: uniform_layer(v) for k, v in formats.items()}, "mixed")


def run(policy: Policy, model: Chain = MODEL) -> dict[str, Any]:
    """Return the names the exported file defines."""
    names: dict[str, Any] = {}
    exec(compile(export(policy, model), "exported.py", "exec"), names)
    return names


def torch_lenet(as_submodules: bool = True) -> Any:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    base: Any = nn.Module

    class LeNet(base):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
            self.fc1, self.fc2, self.fc3 = (
                nn.Linear(400, 120),
                nn.Linear(120, 84),
                nn.Linear(84, 10),
            )
            if as_submodules:
                self.pool1, self.relu1 = nn.MaxPool2d(2), nn.ReLU()

        def forward(self, x: Any) -> Any:
            x = self.conv1(x)
            x = self.relu1(x) if as_submodules else torch.relu(x)
            x = self.pool1(x) if as_submodules else torch.max_pool2d(x, 2)
            x = torch.max_pool2d(torch.relu(self.conv2(x)), 2).flatten(1)
            return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))

    return LeNet()


def dtypes_of(module: Any, inputs: Any) -> dict[str, str]:
    """Return the dtype of every submodule's result."""
    seen: dict[str, str] = {}
    hooks = [
        part.register_forward_hook(
            lambda _, __, y, name=name: seen.__setitem__(name, str(y.dtype).split(".")[1])
        )
        for name, part in module.named_modules()
    ]
    module(inputs)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.torch
def test_layers_compute_in_the_formats_asked() -> None:
    torch = pytest.importorskip("torch")
    module = run(mixed())["apply_policy"](torch_lenet())
    seen = dtypes_of(module, torch.zeros(2, 1, 32, 32))
    assert seen == {
        "conv1": "bfloat16",
        "relu1": "bfloat16",
        "pool1": "bfloat16",
        "conv2": "float16",
        "fc1": "float16",
        "fc2": "bfloat16",
        "fc3": "float32",
        "": "float32",
    }
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert set(module.state_dict()) == set(torch_lenet().state_dict())


@pytest.mark.torch
@pytest.mark.parametrize("name", ["mixed", "mindspore.O1.fixed128", "bfloat16", "apex.O2"])
def test_training_agrees_with_the_emulator(name: str) -> None:
    torch = pytest.importorskip("torch")
    policy = mixed() if name == "mixed" else preset(name, MODEL.layer_names)
    task, dataset = Task(steps=STEPS, tail_steps=5), load_dataset("digits32")
    order = batches(dataset, task.batch_size, STEPS, np.random.default_rng(3))
    initial = initial_parameters(MODEL, 0)
    ours = train(task, policy, 0, dataset=dataset, initial=initial, batch_indices=order)

    exported, module = run(policy), torch_lenet()
    module.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in initial.items()})
    module = exported["apply_policy"](module)
    scaler = exported["make_grad_scaler"]()
    optimizer = torch.optim.SGD(module.parameters(), lr=task.learning_rate, momentum=0.9)
    (array,), classes = dataset.train
    images, labels = torch.from_numpy(np.array(array)), torch.from_numpy(np.array(classes))
    theirs, scales = [], []
    for indices in order:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(images[indices]), labels[indices])
        assert loss.dtype == torch.float32
        theirs.append(loss.item())
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert np.array_equal(scales, ours.scales)
    np.testing.assert_allclose(theirs, ours.losses, rtol=0, atol=1e-3)
    np.testing.assert_allclose(theirs[0], ours.losses[0], rtol=0, atol=1e-5)


@pytest.mark.torch
def test_a_copy_of_the_module_uses_its_own_weights() -> None:
    torch = pytest.importorskip("torch")
    module = run(mixed())["apply_policy"](torch_lenet())
    images = torch.ones(2, 1, 32, 32)
    before = module(images)
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.fc3.bias += 1.0
    torch.testing.assert_close(other(images), before + 1.0)
    torch.testing.assert_close(module(images), before, rtol=0, atol=0)


@pytest.mark.torch
def test_a_weight_shared_by_two_formats_is_cast_for_each() -> None:
    """Autocast caches casts by tensor: nested, the second format would get the first one's."""
    torch = pytest.importorskip("torch")
    model = mlp((4, 4, 4))
    policy = preset("float16", model.layer_names).with_layers({"fc2": uniform_layer("bfloat16")})

    base: Any = torch.nn.Module

    class Shared(base):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.fc2.weight = self.fc1.weight

        def forward(self, x: Any) -> Any:
            return self.fc2(torch.relu(self.fc1(x)))

    module = run(policy, model)["apply_policy"](Shared())
    with torch.autocast("cpu", dtype=torch.float16):
        seen = dtypes_of(module, torch.ones(2, 4))
        module(torch.ones(2, 4)).sum().backward()
    assert seen == {"fc1": "float16", "fc2": "bfloat16", "": "float32"}
    assert module.fc1.weight.grad.dtype == torch.float32


@pytest.mark.torch
def test_ops_that_a_module_calls_by_their_own_names_obey_the_lists() -> None:
    torch = pytest.importorskip("torch")
    model = mlp((4, 4, 4))
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    assert "acos" in policy.fp32_ops and "tanh" in policy.promote_ops
    aten, seen, base = torch.ops.aten, list[Any](), torch.nn.Module

    class Named(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = aten.tanh(self.fc1(x))
            seen.extend((y.dtype, aten.arccos(0.9 * y).dtype))
            return self.fc2(y)

    run(policy, model)["apply_policy"](Named())(torch.ones(2, 4))
    assert seen == [torch.bfloat16, torch.float32]


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["RNNCell", "GRUCell", "LSTMCell"])
def test_recurrent_cells_are_products_of_their_layer(kind: str) -> None:
    torch = pytest.importorskip("torch")
    model = mlp((4, 4, 4))
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    base: Any = torch.nn.Module

    class Cells(base):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = getattr(torch.nn, kind)(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            state = self.fc1(x)
            return state[0] if kind == "LSTMCell" else state

    module = run(policy, model)["apply_policy"](Cells())
    result: list[Any] = []
    module.fc1.register_forward_hook(lambda _, __, y: result.append(y))
    module(torch.ones(2, 4))
    made = result[0][0] if kind == "LSTMCell" else result[0]
    assert made.dtype == torch.bfloat16


@pytest.mark.torch
def test_without_masters_parameters_are_stored_low() -> None:
    torch = pytest.importorskip("torch")
    module = run(preset("apex.O3", MODEL.layer_names))["apply_policy"](torch_lenet())
    assert {p.dtype for p in module.parameters()} == {torch.float16}
    assert module(torch.zeros(2, 1, 32, 32)).dtype == torch.float32


@pytest.mark.torch
def test_a_module_that_does_not_fit_is_refused() -> None:
    torch = pytest.importorskip("torch")
    apply_policy = run(mixed())["apply_policy"]
    short = torch_lenet()
    del short.fc3
    with pytest.raises(ValueError, match=r"^policy: layers 'fc3' have no counterpart; expected"):
        apply_policy(short)
    extra = torch_lenet()
    extra.norm = torch.nn.LayerNorm(4)
    with pytest.raises(ValueError, match=r"^module: 'norm' with parameters, unknown to the policy"):
        apply_policy(extra)
    module = apply_policy(torch_lenet(as_submodules=False))
    with pytest.raises(ValueError, match="already been applied"):
        apply_policy(module)


@pytest.mark.torch
def test_an_odd_policy_name_cannot_break_the_file() -> None:
    pytest.importorskip("torch")
    policy = dataclasses.replace(mixed(), name='"""; import os; \\')
    assert run(policy)["LAYERS"]["fc3"] == ("float32", "float32", None)
