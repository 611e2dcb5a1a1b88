"""Optimizers, weight decay and clipping against torch's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from policysearch.data.datasets import load_dataset
from policysearch.nn.layers import Conv2d, Flatten, Linear
from policysearch.nn.models import Model
from policysearch.policy.presets import preset
from policysearch.train.optimizers import OptimizerKind
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer, initial_parameters


def torch_optimizer(torch: Any, kind: OptimizerKind, net: Any, weight_decay: float) -> Any:
    build = {
        "sgd": lambda p: torch.optim.SGD(p, 0.02, weight_decay=weight_decay),
        "momentum": lambda p: torch.optim.SGD(p, 0.02, 0.9, weight_decay=weight_decay),
        "adam": lambda p: torch.optim.Adam(p, 0.02, weight_decay=weight_decay),
        "adamw": lambda p: torch.optim.AdamW(p, 0.02, weight_decay=weight_decay),
    }
    return build[kind](net.parameters())


@pytest.mark.torch
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("kind", get_args(OptimizerKind))
def test_optimizers_agree_with_torch(
    kind: OptimizerKind, clip_norm: float | None, weight_decay: float
) -> None:
    """A net with a convolution and a dense layer, ten steps."""
    torch = pytest.importorskip("torch")
    layers = (Conv2d("conv", 1, 3, 3), Flatten("flatten"), Linear("fc", 3 * 36, 10))
    model = Model("net", layers, (1, 8, 8), 10)
    task = Task(optimizer=kind, weight_decay=weight_decay, learning_rate=0.02, batch_size=32)
    policy = replace(preset("float32", model.layer_names), gradient_clip_norm=clip_norm)
    given = Trainer(model, task, policy, seed=0)
    initial = initial_parameters(model, 0)
    given.load(initial)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.Flatten(), torch.nn.Linear(3 * 36, 10)
    )
    for own, value in zip(net.parameters(), initial.values(), strict=True):
        own.data = torch.from_numpy(value.copy())
    optimizer = torch_optimizer(torch, kind, net, weight_decay)
    images, labels = load_dataset("digits").train
    for step in range(10):
        part = slice(32 * step, 32 * step + 32)
        loss, _, _ = given.step(images[part], labels[part])
        optimizer.zero_grad()
        logits = net(torch.from_numpy(images[part].copy()))
        expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[part].copy()))
        expected.backward()
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=2e-5)
    for own, value in zip(net.parameters(), given.params().values(), strict=True):
        np.testing.assert_allclose(value, own.detach().numpy(), rtol=1e-3, atol=1e-5)
