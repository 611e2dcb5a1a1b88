"""Training of a `TorchNet` by torch's own optimizers and gradient scaler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.torch_nets import TorchNet
from policysearch.data.datasets import Dataset
from policysearch.policy.policy import LossScale
from policysearch.train.tasks import Task


@dataclass(frozen=True, eq=False)
class TorchRun:
    """What torch gave: one entry per step, losses before the update of their step."""

    losses: NDArray[np.float64]
    scales: NDArray[np.float64]
    skipped: NDArray[np.bool_]


def torch_optimizer(net: TorchNet, task: Task) -> Any:
    """Return torch's optimizer of the task for the parameters of `net`."""
    params = list(net.params.values())
    if task.optimizer in ("sgd", "momentum"):
        momentum = task.momentum if task.optimizer == "momentum" else 0.0
        return torch.optim.SGD(params, task.learning_rate, momentum, weight_decay=task.weight_decay)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[task.optimizer]
    return kind(params, task.learning_rate, weight_decay=task.weight_decay)


def torch_scaler(scale: LossScale) -> Any:
    """Return the gradient scaler of the policy: GradScaler's rule, or a scale that stays."""
    assert scale.kind in ("none", "fixed", "dynamic"), scale.kind
    moves = scale.kind == "dynamic"
    return torch.amp.GradScaler(
        "cpu",
        init_scale=scale.init_scale,
        growth_factor=scale.growth_factor,
        backoff_factor=scale.backoff_factor if moves else 1.0 - 2.0**-53,
        growth_interval=scale.growth_interval if moves else 2**31 - 1,
        enabled=scale.kind != "none",
    )


def train_in_torch(
    net: TorchNet, task: Task, dataset: Dataset, order: NDArray[np.int64]
) -> TorchRun:
    """Train `net` on the batches `order` [steps, batch] of the training part."""
    images, labels = (torch.from_numpy(np.array(part)) for part in dataset.train)
    optimizer, scaler = torch_optimizer(net, task), torch_scaler(net.policy.loss_scale)
    losses, scales, skipped = [], [], []
    for indices in order:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(images[indices]), labels[indices])
        losses.append(loss.item())
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < scales[-1])
    return TorchRun(np.array(losses), np.array(scales), np.array(skipped))
