"""When a training is lost, and when it goes on past a loss that is not finite."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from policysearch.data.datasets import Dataset, batches, load_dataset
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.train.divergence import has_diverged, tail_mean
from policysearch.train.feeding import initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.training import train

TASK = Task(
    model="mlp",
    widths=(32,),
    activation="tanh",
    data="digits",
    steps=60,
    tail_steps=20,
    learning_rate=0.02,
)
SCALE = LossScale("dynamic", 2.0**10, growth_interval=20)
OUTLIER = 7
"""The step whose batch has one image that is multiplied by 1e5."""


@pytest.mark.parametrize(
    ("latest", "skips", "lost"),
    [
        ([1.0], 0, False),
        ([math.nan], 0, True),
        ([math.nan], 1, False),
        ([2.0, math.inf], 0, True),
        ([2.0, math.inf, 2.0], 3, False),
        ([math.nan] * 49, 49, False),
        ([math.nan] * 50, 50, True),
        ([math.nan] * 49 + [1.0] + [math.nan], 51, False),
        ([30.0] * 4, 0, False),
        ([30.0] * 5, 0, True),
        ([30.0] * 5, 5, True),
        ([30.0, 30.0, 19.0, 30.0, 30.0], 0, False),
        ([30.0, 30.0, math.nan, 30.0, 30.0], 5, False),
    ],
)
def test_when_a_run_is_lost(latest: list[float], skips: int, lost: bool) -> None:
    losses, kept = [2.0, *latest], len(latest) - skips
    assert has_diverged(losses, [False] * (1 + kept) + [True] * skips) is lost


@pytest.mark.parametrize(
    ("losses", "lost"),
    [
        ([-0.5] * 6, False),
        ([-0.5, -0.4, -0.3, -0.2, -0.1, 0.1, 0.2], False),
        ([0.0, 0.1, 0.1, 0.1, 0.1, 0.1], True),
        ([1e-3, -0.2, 0.3, 0.3, 0.3, 0.3, 0.3], False),
        ([-0.5, *[5.1] * 5], True),
        ([-0.5, *[5.1] * 4], False),
        ([-0.5, 1.0, *[9.0] * 5], False),
        ([-0.5, 1.0, *[11.0] * 5], True),
    ],
)
def test_when_a_run_of_a_loss_that_may_be_negative_is_lost(losses: list[float], lost: bool) -> None:
    assert has_diverged(losses, [False] * len(losses)) is lost


def test_the_tail_is_the_mean_of_what_is_finite() -> None:
    assert tail_mean([1.0, math.nan, 2.0, math.inf]) == 1.5
    assert tail_mean([math.nan]) == math.inf


def with_outlier(plain: Dataset, order: np.ndarray) -> Dataset:
    images = np.array(plain.images)
    images[order[OUTLIER][0]] *= np.float32(1e5)
    return replace(plain, inputs=(images,))


def test_an_outlier_under_a_dynamic_scale_is_skipped_and_forgotten() -> None:
    plain = load_dataset("digits")
    order = batches(plain, TASK.batch_size, TASK.steps, np.random.default_rng(0))
    dataset = with_outlier(plain, order)
    policy = preset("torch.autocast.float16", TASK.build_model(dataset).layer_names)
    policy = replace(policy, loss_scale=SCALE)
    run = train(TASK, policy, 0, dataset=dataset, batch_indices=order)
    assert not run.diverged and len(run.losses) == TASK.steps
    bad = ~np.isfinite(run.losses)
    assert bad[OUTLIER] and bad.sum() < 4
    np.testing.assert_array_equal(run.skipped, bad)
    assert math.isfinite(run.tail_loss) and run.tail_loss < run.losses[0]
    bare = train(
        TASK, replace(policy, loss_scale=LossScale()), 0, dataset=dataset, batch_indices=order
    )
    assert bare.diverged and bare.diverged_at == OUTLIER and bare.tail_loss == math.inf


@pytest.mark.torch
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_an_outlier_moves_scale_and_losses_as_in_torch(activation: str) -> None:
    """To the end of the run: skips and scales the same, losses within torch's own noise."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_training import train_in_torch

    torch.set_num_threads(1)
    task = replace(TASK, activation=activation)
    plain = load_dataset("digits")
    order = batches(plain, task.batch_size, task.steps, np.random.default_rng(0))
    dataset = with_outlier(plain, order)
    model = task.build_model(dataset)
    policy = replace(preset("torch.autocast.float16", model.layer_names), loss_scale=SCALE)
    initial = initial_parameters(model, 0)
    ours = train(task, policy, 0, dataset=dataset, initial=initial, batch_indices=order)
    runs = [
        train_in_torch(TorchNet(model, policy, initial, jitter), task, dataset, order)
        for jitter in (None, 0, 1, 2, 3)
    ]
    theirs = runs[0]
    assert theirs.skipped.any() and (theirs.scales[1:] > theirs.scales[:-1]).any()
    np.testing.assert_array_equal(ours.skipped, theirs.skipped)
    np.testing.assert_array_equal(ours.scales, theirs.scales)
    finite = np.isfinite(theirs.losses)
    assert not finite.all()
    np.testing.assert_array_equal(np.isfinite(ours.losses), finite)
    noise = max(np.abs(run.losses - theirs.losses)[finite].max() for run in runs[1:])
    gap = np.abs(ours.losses - theirs.losses)[finite].max()
    print(f"{activation}: {gap:.1e}, torch's own {noise:.1e}, skipped {theirs.skipped.sum()}")
    assert gap <= max(1e-5, 2 * noise)
