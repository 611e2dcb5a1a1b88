"""Trainings in mixed formats against the same nets in torch, cast by `Tensor.to`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import Dataset, batches, load_dataset
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.training import train

pytestmark = pytest.mark.torch

STEPS, JITTERS = 10, 4
MLP = Task(
    model="mlp",
    widths=(24, 24, 24),
    data="digits",
    learning_rate=0.02,
    batch_size=64,
    steps=STEPS,
    tail_steps=5,
)


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> None:
    """Threads change the order of torch's sums."""
    pytest.importorskip("torch").set_num_threads(1)


def mixed(task: Task, dataset: Dataset, base: str, seed: int) -> Policy:
    """Return a policy whose layers draw their format from float32, float16 and bfloat16."""
    names = task.build_model(dataset).layer_names
    drawn = np.random.default_rng(seed).choice(["float32", "float16", "bfloat16"], len(names))
    layers = {name: uniform_layer(str(row)) for name, row in zip(names, drawn, strict=True)}
    return replace(preset(base, names), loss_scale=preset("float32", names).loss_scale).with_layers(
        layers
    )


def gaps(task: Task, policy: Policy, dataset: Dataset, seed: int) -> tuple[Any, Any]:
    """Return per step how far our loss is from torch's, and torch's own noise (`TorchNet`)."""
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_training import train_in_torch

    model = task.build_model(dataset)
    initial = initial_parameters(model, seed)
    order = batches(dataset, task.batch_size, task.steps, np.random.default_rng(seed))
    ours = train(task, policy, seed, dataset=dataset, initial=initial, batch_indices=order)
    net = partial(TorchNet, model, policy, initial)
    trained = net()
    theirs = train_in_torch(trained, task, dataset, order)
    others = [train_in_torch(net(jitter), task, dataset, order) for jitter in range(JITTERS)]
    assert all(value.grad.abs().max() > 0 for value in trained.params.values())
    np.testing.assert_array_equal(ours.scales, theirs.scales)
    return np.abs(ours.losses - theirs.losses), np.max(
        [np.abs(other.losses - theirs.losses) for other in others], 0
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("base", ["torch.autocast.float16", "float16"])
@pytest.mark.parametrize("activation", ["tanh", "gelu", "gelu_tanh"])
def test_mixed_dense_nets(activation: str, base: str, seed: int, digits: Dataset) -> None:
    """Activations run in the format they are given (promote), or in that of their own layer."""
    task = replace(MLP, activation=activation)
    gap, noise = gaps(task, mixed(task, digits, base, seed), digits, seed)
    print(f"{activation} {base} {seed}: {gap.max():.1e}, torch's own {noise.max():.1e}")
    assert gap.max() <= max(1e-6, noise.max())


LENET = Task(
    activation="gelu",
    data="digits32",
    optimizer="adam",
    learning_rate=1e-3,
    steps=STEPS,
    tail_steps=5,
)
TRANSFORMER = replace(LENET, model="transformer", data="digits", widths=(16, 32))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("base", ["torch.autocast.float16", "float16"])
@pytest.mark.parametrize("task", [LENET, TRANSFORMER], ids=["lenet5", "transformer"])
def test_mixed_nets_with_adam(task: Task, base: str, seed: int) -> None:
    dataset = load_dataset(task.data_name)
    gap, noise = gaps(task, mixed(task, dataset, base, seed), dataset, seed)
    print(f"{task.model_name} {base} {seed}: {gap.max():.1e}, torch's own {noise.max():.1e}")
    # one more draw of the noise now and then exceeds the largest of JITTERS, rarely twice over
    assert gap.max() <= max(1e-5, 2 * noise.max())
