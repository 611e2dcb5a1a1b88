"""Clipping of the recipe: against trainings in torch, and what older policy files said of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import Dataset, batches
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.training import train

STEPS, JITTERS = 30, 4
TASK = Task(
    model="mlp",
    activation="tanh",
    widths=(24, 24),
    data="digits",
    learning_rate=0.1,
    batch_size=64,
    steps=STEPS,
    tail_steps=5,
)
CLIPPED: list[dict[str, Any]] = [{"clip_norm": 0.2}, {"clip_value": 0.01}]
SCALES = {
    "float32": LossScale(),
    "torch.autocast.bfloat16": LossScale(),
    "torch.autocast.float16": LossScale("fixed", 1024.0),
    "float16": LossScale("dynamic", 2.0**22, growth_interval=4),
}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*optimizer.step.*:UserWarning")  # the first step is skipped
@pytest.mark.parametrize("clipped", CLIPPED, ids=str)
@pytest.mark.parametrize("name", SCALES)
def test_clipped_trainings_are_torchs(name: str, clipped: dict[str, Any], digits: Dataset) -> None:
    """Every update is clipped, after it is unscaled; a step that overflows is skipped before."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_training import train_in_torch

    torch.set_num_threads(1)
    task = replace(TASK, **clipped)
    model = task.build_model(digits)
    policy = replace(preset(name, model.layer_names), loss_scale=SCALES[name])
    initial = initial_parameters(model, 0)
    order = batches(digits, task.batch_size, task.steps, np.random.default_rng(0))
    ours = train(task, policy, 0, dataset=digits, initial=initial, batch_indices=order)
    net = partial(TorchNet, model, policy, initial)
    theirs = train_in_torch(net(), task, digits, order)
    noise = np.max(
        [
            np.abs(train_in_torch(net(jitter), task, digits, order).losses - theirs.losses)
            for jitter in range(JITTERS)
        ],
        0,
    )
    assert theirs.clipped[~theirs.skipped].all() and (~theirs.skipped).sum() >= 20
    assert theirs.skipped.any() == (SCALES[name].kind == "dynamic")
    np.testing.assert_array_equal(ours.scales, theirs.scales)
    np.testing.assert_array_equal(ours.skipped, theirs.skipped)
    gap = np.abs(ours.losses - theirs.losses)
    print(f"{name} {clipped}: {gap.max():.1e}, torch's own {noise.max():.1e}")
    assert gap.max() <= max(1e-6, 2 * noise.max())
    free = train(TASK, policy, 0, dataset=digits, initial=initial, batch_indices=order)
    assert np.abs(ours.losses - free.losses).max() > 0.05
