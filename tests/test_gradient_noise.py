"""The benchmark of gradients beside their rounding noise: its gradients, its noise, its probes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest

from benchmarks.gradient_noise import Seen, policies, train
from policysearch import from_torch
from policysearch.data.datasets import load_dataset
from policysearch.policy.presets import preset
from policysearch.train.paired_run import PairedRun, along, ratio
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer

TASK = Task(
    model="mlp", widths=(16,), data="digits", batch_size=32, steps=41, tail_steps=5, optimizer="sgd"
)
MASKED = Task(
    model="gpt",
    activation="gelu",
    widths=(8, 16, 16),
    data="sums",
    loss="token_cross_entropy",
    optimizer="sgd",
    batch_size=8,
    steps=4,
    tail_steps=1,
)
"""Its attention has a mask, which is a constant of the model."""


@pytest.mark.parametrize("task", [TASK, MASKED], ids=["mlp", "gpt"])
def test_gradients_are_those_that_plain_sgd_subtracts(task: Task) -> None:
    assert_subtracted(task)


@pytest.mark.torch
def test_gradients_are_of_the_values_that_training_keeps_of_dropout() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nn, shape = torch.nn, load_dataset("digits").image_shape
    wide, narrow = nn.Linear(math.prod(shape), 32), nn.Linear(32, 10)
    net = nn.Sequential(nn.Flatten(), wide, nn.Dropout(0.5), narrow)
    assert_subtracted(replace(TASK, model=from_torch(net, torch.zeros(2, *shape)), widths=()))


def assert_subtracted(task: Task) -> None:
    """The gradients beside a training are what its own steps subtract, over the rate."""
    data = task.load_dataset()
    model = task.build_model(data)
    policy = preset("mindspore.O2.fixed128", model.layer_names)
    beside = PairedRun(task, model, policy, 0)
    moments = islice(along(Trainer(model, task, policy, 0), data), 3)
    for here, after in pairwise(moments):
        _, found = beside.at(here)
        for name, before in here.params.items():
            moved = (before.astype(np.float64) - after.params[name]) / task.learning_rate
            np.testing.assert_allclose(found[f"grad:{name}"], moved, atol=2e-5)
            # softmax takes away what a bias of the keys adds to a row
            assert np.abs(moved).max() > 1e-3 or name.endswith(".k.bias")


def test_a_ratio_is_of_norms_over_all_parameters() -> None:
    exact = {"a": np.array([3.0, 4.0]), "b": np.array([12.0])}
    low = {"a": np.array([3.0, 4.0]), "b": np.array([10.0])}
    assert ratio(exact, low, exact) == 13.0 / 2.0
    assert ratio(exact, exact, exact) == math.inf


def test_probes_before_a_step_are_its_last_four() -> None:
    rows = tuple((float(i), 1.0, 2.0 * i, 3.0 * i) for i in range(10))
    seen = Seen(np.zeros(200), rows)
    every, back, least = seen.before(101)  # steps 40, 60, 80 and 100
    assert every == pytest.approx(math.sqrt((4 + 9 + 16 + 25) / 4))
    assert back == 1.0 and least == pytest.approx(2.0 * every)


def test_narrower_formats_have_more_noise() -> None:
    data = load_dataset("digits")
    model = TASK.build_model(data)
    made = {p.name: p for p in policies(model, ("float4_e2m1fn", "float8_e4m3fn"))}
    ratios = [
        train(TASK, made[f"{name} current nearest"], data, model).before(TASK.steps)
        for name in ("float4_e2m1fn", "float8_e4m3fn")
    ]
    assert len(train(TASK, made["float4_e2m1fn mx nearest"], data, model).ratios) == 3
    assert all(1.0 < narrow < wide for narrow, wide in zip(*ratios, strict=True))
    exact = replace(preset("float32", model.layer_names), name="exact")
    assert train(TASK, exact, data, model).before(TASK.steps) == (math.inf,) * 3
