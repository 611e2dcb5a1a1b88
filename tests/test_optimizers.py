"""Optimizers, weight decay and clipping against torch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import load_dataset
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Conv2d, Flatten, Linear
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.values import InputError

KINDS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {},
    "momentum, damped": {"dampening": 0.3},
    "momentum, none but damped": {"momentum": 0.0, "dampening": 0.3},
    "momentum, nesterov": {"nesterov": True},
    "adam": {},
    "adam, betas": {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3},
    "adamw": {},
}


@pytest.mark.torch
@pytest.mark.parametrize(
    "decay", [{}, {"weight_decay": 0.05}, {"weight_decay": 0.5, "weight_decay_for": "matrices"}]
)
@pytest.mark.parametrize("clipping", [{}, {"clip_norm": 0.5}, {"clip_value": 0.02}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_agree_with_torch(
    kind: str, clipping: dict[str, Any], decay: dict[str, Any]
) -> None:
    """A net with a convolution and a dense layer, ten steps of warm-up and half a cosine."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_schedules import torch_schedule
    from benchmarks.torch_training import clip_gradients, torch_optimizer

    layers = (Conv2d("conv", 1, 3, 3), Flatten("flatten"), Linear("fc", 3 * 36, 10))
    model = Chain("net", layers, (1, 8, 8), 10)
    fields: dict[str, Any] = {"optimizer": kind.split(",")[0], **KINDS[kind], **decay, **clipping}
    schedule = Schedule("cosine", warmup_steps=3)
    task = Task(
        learning_rate=0.02, batch_size=32, steps=10, tail_steps=5, schedule=schedule, **fields
    )
    policy = preset("float32", model.layer_names)
    given = Trainer(model, task, policy, seed=0)
    initial = initial_parameters(model, 0)
    given.load(initial)
    net = TorchNet(model, policy, initial)
    optimizer = torch_optimizer(net, task)
    scheduler = torch_schedule(optimizer, task)
    (images,), labels = load_dataset("digits").train
    for step in range(10):
        part = slice(32 * step, 32 * step + 32)
        loss, _, _ = given.step((images[part],), labels[part])
        optimizer.zero_grad()
        logits = net(torch.from_numpy(images[part].copy()))
        expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[part].copy()))
        expected.backward()
        assert clip_gradients(list(net.params.values()), task) == bool(clipping)
        optimizer.step()
        scheduler.step()
        assert loss == pytest.approx(expected.item(), rel=2e-5)
    for name, value in given.params().items():
        own = net.params[name].detach().numpy()
        assert (value != initial[name]).any()
        np.testing.assert_allclose(value, own, rtol=1e-3, atol=1e-5)


def test_nesterov_wants_momentum_without_dampening() -> None:
    wrong: list[dict[str, Any]] = [{"kind": "sgd"}, {"momentum": 0.0}, {"dampening": 0.1}]
    for given in wrong:
        with pytest.raises(InputError, match="nesterov: True with kind"):
            Optimizer(nesterov=True, **given)
