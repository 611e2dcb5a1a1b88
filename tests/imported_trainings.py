"""Float32 trainings of imported nets beside the same trainings in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from tests.imported_steps import (
    LOSS,
    Array,
    assert_close,
    evaluated,
    first_of,
    imported,
    labels_for,
    shaken,
    tensors,
)

STEPS, BATCH = 50, 8
EPSILON = 1e-3
"""Of AdamW: with a smaller one it takes whole steps along gradients that are rounding alone."""
SCALE = LossScale("dynamic", init_scale=1024.0, growth_interval=10)


class Sided(torch.nn.Module):
    """A net and a bias by example: where that is infinite the step has no finite gradient."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.side = net, torch.nn.Linear(1, 1)

    def forward(self, *inputs: Any) -> Any:
        *own, side = inputs
        return self.net(*own) + self.side(side)


@dataclass(frozen=True)
class Training:
    """`make` and `inputs` as in NETS; the steps `skipped` have a batch that is not finite."""

    make: Callable[[], Any]
    inputs: Callable[[np.random.Generator, int], tuple[Array, ...]]
    optimizer: Literal["momentum", "adamw"]
    rate: float
    skipped: tuple[int, ...] = ()

    def module(self) -> Any:
        net = shaken(self.make())
        return Sided(net) if self.skipped else net

    def batch(self, step: int) -> tuple[Array, ...]:
        rng = np.random.default_rng(step)
        if not self.skipped:
            return self.inputs(rng, BATCH)
        side = rng.standard_normal((BATCH, 1)).astype(np.float32)
        side[0] = np.inf if step in self.skipped else side[0]
        return (*self.inputs(rng, BATCH), side)


def _optimizer(training: Training, module: Any) -> Any:
    if training.optimizer == "adamw":
        parameters = module.parameters()
        return torch.optim.AdamW(parameters, training.rate, eps=EPSILON, weight_decay=0.05)
    return torch.optim.SGD(module.parameters(), training.rate, 0.9, weight_decay=0.05)


def _torch_step(module: Any, optimizer: Any, scaler: Any, inputs: Any, labels: Array) -> float:
    optimizer.zero_grad()
    logits = first_of(module.train()(*tensors(inputs)))
    flat = logits.reshape(-1, logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(flat, torch.from_numpy(labels).reshape(-1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return float(loss.detach())


def trained_as_torch(training: Training) -> None:
    """Assert that losses, statistics, parameters and the evaluated net stay torch's."""
    module = training.module()
    model = imported(module, training.batch(0))
    task = Task(
        model=model,
        loss=LOSS,
        optimizer=training.optimizer,
        learning_rate=training.rate,
        epsilon=EPSILON,
        weight_decay=0.05,
        batch_size=BATCH,
        steps=STEPS,
    )
    policy = replace(preset("float32", model.layer_names), loss_scale=SCALE)
    trainer = Trainer(model, task, policy, seed=0)
    trainer.load(model.init(np.random.default_rng(0)))
    optimizer = _optimizer(training, module)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE.init_scale, growth_interval=10)
    with torch.no_grad():
        logits = first_of(module.eval()(*tensors(training.batch(0))))
    statistics = [spec.name for spec in model.statistics()]
    skipped = []
    for step in range(STEPS):
        inputs = training.batch(step)
        labels = labels_for(logits, np.random.default_rng((step, 1)))
        before = trainer.params()
        assert scaler.get_scale() == trainer.scale_state.scale
        expected = _torch_step(module, optimizer, scaler, inputs, labels)
        loss, _, skip = trainer.step(inputs, labels)
        moved = {name for name, value in trainer.params().items() if (value != before[name]).any()}
        if skip:
            skipped.append(step)
            assert moved == set(statistics) != set() and np.isnan([loss, expected]).all()
        else:
            assert moved > set(statistics)
            assert abs(loss - expected) <= 1e-4 * expected, step
    assert tuple(skipped) == training.skipped
    _assert_ends_as(module, trainer, statistics, training)


def _assert_ends_as(
    module: Any, trainer: Trainer, statistics: list[str], training: Training
) -> None:
    ours, buffers = trainer.params(), dict(module.named_buffers())
    for name in statistics:
        assert_close(ours[name], buffers[name].numpy(), 1e-5, name)
    if training.optimizer != "adamw":  # it takes whole steps along gradients of rounding alone
        for name, parameter in module.named_parameters():
            assert_close(ours[name], parameter.detach().numpy(), 1e-4, name)
    inputs = training.batch(STEPS)
    with torch.no_grad():
        expected = first_of(module.eval()(*tensors(inputs))).numpy()
    assert_close(evaluated(trainer.model, inputs, ours), expected, 1e-4, "evaluation")
    started = {**trainer.model.init(np.random.default_rng(0)), **{k: ours[k] for k in statistics}}
    untrained = evaluated(trainer.model, inputs, started)
    assert np.abs(untrained - expected).max() > 1e-3 * np.abs(expected).max()
