"""Training of a `TorchNet` by torch's own optimizers and gradient scaler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.torch_nets import TorchNet
from benchmarks.torch_schedules import torch_schedule
from policysearch.data.datasets import Dataset
from policysearch.policy.loss_scale import LossScale
from policysearch.train.tasks import Task


@dataclass(frozen=True, eq=False)
class TorchRun:
    """What torch gave: one entry per step, losses before the update of their step.

    `clipped`: whether clipping moved any gradient.
    """

    losses: NDArray[np.float64]
    scales: NDArray[np.float64]
    skipped: NDArray[np.bool_]
    clipped: NDArray[np.bool_]


def torch_optimizer(net: TorchNet, task: Task) -> Any:
    """Return torch's optimizer of the task for the parameters of `net`, each in its group."""
    groups = list(torch_groups(net.params, task))
    given: dict[str, Any] = {"lr": task.learning_rate, "weight_decay": task.weight_decay}
    if task.optimizer in ("sgd", "momentum"):
        given["momentum"] = task.momentum if task.optimizer == "momentum" else 0.0
        given |= {"dampening": task.dampening, "nesterov": task.nesterov}
        return torch.optim.SGD(groups, **given)
    given |= {"betas": (task.beta1, task.beta2), "eps": task.epsilon}
    given["fused"] = net.policy.optimizer_order == "fused" and not net.policy.master_weights
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[task.optimizer](groups, **given)


def torch_groups(params: Mapping[str, Any], task: Task) -> Iterator[dict[str, Any]]:
    """Yield a group for each parameter that is trained, as a script that names them would."""
    for name, parameter in params.items():
        group: dict[str, Any] = {"params": [parameter]}
        if parameter.dim() < 2 and task.weight_decay_for == "matrices":
            group["weight_decay"] = 0.0
        for own in task.groups:
            if any(fnmatchcase(name, pattern) for pattern in own.match):
                group["lr"] = task.learning_rate * own.rate_factor
                group |= {} if own.weight_decay is None else {"weight_decay": own.weight_decay}
                parameter.requires_grad_(not own.frozen)
        if parameter.requires_grad:
            yield group


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
    """Train `net` on the steps `order` [steps, examples] of the training part.

    Each is cut into the task's micro-batches; its loss is their mean.
    """
    (array,), classes = dataset.train
    images, labels = torch.from_numpy(np.array(array)), torch.from_numpy(np.array(classes))
    optimizer, scaler = torch_optimizer(net, task), torch_scaler(net.policy.loss_scale)
    schedule = torch_schedule(optimizer, task)
    losses, scales, skipped, clipped = [], [], [], []
    for indices in order:
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        parts = []
        for part in indices.reshape(task.accumulation_steps, -1):
            loss = functional.cross_entropy(net(images[part]), labels[part])
            parts.append(loss.item())
            scaler.scale(loss / task.accumulation_steps).backward()
        losses.append(sum(parts) / len(parts))
        if task.clip_norm is not None or task.clip_value is not None:
            scaler.unscale_(optimizer)
        trained = [x for x in net.params.values() if x.grad is not None]
        clipped.append(clip_gradients(trained, task))
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        skipped.append(scaler.get_scale() < scales[-1])
    return TorchRun(*map(np.array, (losses, scales, skipped, clipped)))


def clip_gradients(params: Sequence[Any], task: Task) -> bool:
    """Clip the unscaled gradients as the task says; return whether that moved any."""
    of = torch.nn.utils
    before = [x.grad.clone() for x in params]
    if task.clip_norm is not None:
        of.clip_grad_norm_(params, task.clip_norm)
    if task.clip_value is not None:
        of.clip_grad_value_(params, task.clip_value)
    return any(bool((x.grad != grad).any()) for x, grad in zip(params, before, strict=True))
