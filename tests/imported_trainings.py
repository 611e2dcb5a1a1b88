"""Float32 trainings of imported nets beside the same trainings in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from policysearch.importers.stand_ins import module_copy
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

STEPS, BATCH, COPIES = 50, 8, 3
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


@dataclass(frozen=True)
class InTorch:
    """A module in training."""

    module: Any
    optimizer: Any
    scaler: Any

    def step(self, inputs: Any, labels: Array) -> float:
        self.optimizer.zero_grad()
        logits = first_of(self.module.train()(*tensors(inputs)))
        flat = logits.reshape(-1, logits.shape[-1])
        loss = torch.nn.functional.cross_entropy(flat, torch.from_numpy(labels).reshape(-1))
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return float(loss.detach())


def _in_torch(training: Training, module: Any) -> InTorch:
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE.init_scale, growth_interval=10)
    return InTorch(module, _optimizer(training, module), scaler)


def _jittered(module: Any, seed: int) -> Any:
    """Return a copy whose parameters are moved by float32's rounding: what follows is noise."""
    near, noise = module_copy(module), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in near.parameters():
            p *= 1 + 1e-7 * torch.randn(p.shape, generator=noise)
    return near


def _trainer(training: Training, module: Any) -> Trainer:
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
    return trainer


def trained_as_torch(training: Training) -> None:
    """Assert that losses, statistics, parameters and the evaluated net stay torch's.

    Or within twice of what those of jittered copies of the module move.
    """
    module, noise = training.module(), 0.0
    trainer, theirs = _trainer(training, module), _in_torch(training, module)
    copies = [_in_torch(training, _jittered(module, seed)) for seed in range(COPIES)]
    with torch.no_grad():
        logits = first_of(module.eval()(*tensors(training.batch(0))))
    statistics = [spec.name for spec in trainer.model.statistics()]
    skipped = []
    for step in range(STEPS):
        inputs = training.batch(step)
        labels = labels_for(logits, np.random.default_rng((step, 1)))
        before = trainer.params()
        assert theirs.scaler.get_scale() == trainer.scale_state.scale
        expected, *others = (each.step(inputs, labels) for each in (theirs, *copies))
        loss, _, skip = trainer.step(inputs, labels)
        moved = {name for name, value in trainer.params().items() if (value != before[name]).any()}
        if skip:
            skipped.append(step)
            assert moved == set(statistics) != set() and np.isnan([loss, expected]).all()
        else:
            assert moved > set(statistics)
            noise = max(noise, *(abs(other - expected) for other in others))
            assert abs(loss - expected) <= max(1e-4 * expected, 2.0 * noise), step
    assert tuple(skipped) == training.skipped
    nets = [module, *(each.module for each in copies)]
    _assert_ends_as(nets, trainer, statistics, training)


def _assert_near(got: Array, nets: Sequence[Any], tolerance: float, where: str) -> None:
    """Assert it to be close to the first of these arrays, which is torch's; others are noise."""
    expected, *others = (x.detach().numpy() for x in nets)
    noise = max(float(np.abs(x - expected).max()) for x in others) / np.abs(expected).max()
    assert_close(got, expected, max(tolerance, 2.0 * noise), where)


def _assert_ends_as(
    nets: Sequence[Any], trainer: Trainer, statistics: list[str], training: Training
) -> None:
    ours, states = trainer.params(), [net.state_dict() for net in nets]
    trained = [name for name, _ in nets[0].named_parameters()]
    if training.optimizer == "adamw":  # it takes whole steps along gradients of rounding alone
        trained = []
    for name, tolerance in (*((n, 1e-5) for n in statistics), *((n, 1e-4) for n in trained)):
        _assert_near(ours[name], [state[name] for state in states], tolerance, name)
    inputs = training.batch(STEPS)
    with torch.no_grad():
        outputs = [first_of(net.eval()(*tensors(inputs))) for net in nets]
    _assert_near(evaluated(trainer.model, inputs, ours), outputs, 1e-4, "evaluation")
    expected = outputs[0].numpy()
    started = {**trainer.model.init(np.random.default_rng(0)), **{k: ours[k] for k in statistics}}
    untrained = evaluated(trainer.model, inputs, started)
    assert np.abs(untrained - expected).max() > 1e-3 * np.abs(expected).max()
