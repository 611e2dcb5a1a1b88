"""Gradients summed over micro-batches against torch's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch import api
from policysearch.data.datasets import load_dataset
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.verify.verdict import verify

TASK = Task(
    model="mlp",
    data="digits",
    widths=(24, 24),
    batch_size=16,
    steps=30,
    tail_steps=10,
    learning_rate=0.05,
    accumulation_steps=4,
)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Detected call")  # the first step is skipped
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("name", ["float32", "torch.autocast.bfloat16", "torch.autocast.float16"])
def test_sums_over_micro_batches_train_as_those_of_torch(name: str, count: int) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_training import train_in_torch

    task, dataset = replace(TASK, accumulation_steps=count), load_dataset("digits")
    model = task.build_model(dataset)
    policy = preset(name, model.layer_names)
    half = name.endswith("float16") and "b" not in name
    if half:
        scale = LossScale("dynamic", 2.0**19, growth_interval=5)
        policy = replace(policy, loss_scale=scale)
    ours = train(task, policy, 0, dataset=dataset)
    net = TorchNet(model, policy, initial_parameters(model, 0))
    torch.set_num_threads(1)
    theirs = train_in_torch(net, task, dataset, batch_order(task, dataset, 0))
    np.testing.assert_array_equal(ours.skipped, theirs.skipped)
    np.testing.assert_array_equal(ours.scales, theirs.scales)
    assert 0 < ours.skipped.sum() < 15 if half else not ours.skipped.any()
    # A float16 that rounds the other way, one in thousands, moves all steps after it: runs of one
    # micro-batch a step are 5e-6 apart in ten steps, and 1.4e-3 in 30.
    np.testing.assert_allclose(ours.losses[:10], theirs.losses[:10], rtol=1e-5 if half else 1e-6)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-3 if half else 1e-6)
    for key, value in ours.params.items():
        own = net.params[key].detach().numpy()
        np.testing.assert_allclose(value, own, rtol=1e-4, atol=1e-3 if half else 2e-6)
    # the net has learned, from other steps than of one micro-batch each
    assert ours.losses[-1] < 0.9 * ours.losses[0]
    alone = train(replace(task, accumulation_steps=1), policy, 0, dataset=dataset)
    assert abs(alone.losses / ours.losses - 1).max() > 0.01


@pytest.mark.torch
@pytest.mark.parametrize("name", ["bfloat16", "torch.autocast.float16", "torchao.tensorwise"])
def test_the_exported_file_trains_with_the_same_sums(name: str) -> None:
    """Without masters, sums are bfloat16: each addition is rounded, as to `.grad` in torch."""
    pytest.importorskip("torch")
    policy = preset(name, mlp_layers())
    found = verify(policy, TASK, steps=15)
    assert found.faults == () and len(found.losses) == 15
    assert len(np.unique(found.losses)) == 15


def mlp_layers() -> tuple[str, ...]:
    return TASK.build_model(load_dataset("digits")).layer_names


def test_tasks_without_sums_are_those_of_older_journals() -> None:
    """A journal goes on under the fingerprint that it has, which says the sums where there are."""
    alone = replace(TASK, accumulation_steps=1)
    assert "accumulation_steps" not in alone.to_plain()
    assert TASK.to_plain() == {**alone.to_plain(), "accumulation_steps": 4}
    assert TASK.fingerprint != alone.fingerprint
    longer = TASK.with_steps(60)
    assert (longer.accumulation_steps, longer.groups) == (4, TASK.groups)


def test_what_is_explained_says_the_sums() -> None:
    policy = preset("torch.autocast.bfloat16", mlp_layers())
    said = "accumulation: a step sums the gradients of loss / 4 over 4 micro-batches"
    assert said in api.explain(policy, TASK)
    assert said not in api.explain(policy, replace(TASK, accumulation_steps=1))
