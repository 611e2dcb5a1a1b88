"""Nets that return a loss of their own train as torch does, in float32 and in 16 bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.verify.gpu_rounding import AsAGpu
from tests.imported_steps import Array, imported, shaken, tensors
from tests.losses_in_float32 import Autocast

pytestmark = pytest.mark.torch

STEPS, BATCH, CLASSES, SCALE, COPIES = 50, 8, 5, 256.0, 2
JITTER = {"float32": 1e-7, "float16": 1e-5, "bfloat16": 8e-5}
"""Of parameters: a hundredth of the epsilon of 16 bits, so that one cast in a hundred differs."""


class Segmenter(nn.Module):
    """A class for each place of a picture, rare ones of more weight, unknown ones left out."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, CLASSES, 1)
        self.register_buffer("weight", torch.linspace(0.5, 1.5, CLASSES))

    def forward(self, x: Any, classes: Any) -> Any:
        logits = self.two(torch.tanh(self.one(x)))
        weight: Any = self.weight
        return F.cross_entropy(logits, classes, weight, ignore_index=0, label_smoothing=0.1)


class Tagger(nn.Module):
    """Labels of which an example may have several."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 10), nn.Linear(10, CLASSES)

    def forward(self, x: Any, truths: Any) -> Any:
        logits = self.two(torch.tanh(self.one(x)))
        weight = torch.full((CLASSES,), 2.0)
        return F.binary_cross_entropy_with_logits(logits, truths, pos_weight=weight)


class Speech(nn.Module):
    """Two labels or one in seven steps."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 10), nn.Linear(10, CLASSES)

    def forward(self, x: Any, labels: Any, count: Any) -> Any:
        log_p = self.two(torch.tanh(self.one(x))).log_softmax(-1)
        steps = torch.full((len(x),), 7)
        return F.ctc_loss(log_p.transpose(0, 1), labels, steps, count)


class Faces(nn.Module):
    """Alike examples near one another, others by a margin farther."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(12, 10), nn.Linear(10, 4)

    def place(self, x: Any) -> Any:
        return self.two(torch.tanh(self.one(x)))

    def forward(self, anchor: Any, near: Any, far: Any) -> Any:
        anchor, near, far = map(self.place, (anchor, near, far))
        return F.triplet_margin_loss(anchor, near, far, margin=2.0, swap=True)


class Student(nn.Module):
    """Learns what a frozen teacher says of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(12, CLASSES), nn.Linear(12, CLASSES)
        self.teacher.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        log_p = (0.5 * self.student(x)).log_softmax(-1)
        return 4.0 * F.kl_div(log_p, (2.0 * self.teacher(x)).softmax(-1), reduction="batchmean")


def of_pictures(rng: np.random.Generator) -> tuple[Array, ...]:
    classes = rng.integers(0, CLASSES, (BATCH, 4, 4))
    x = rng.standard_normal((BATCH, 2, 4, 4)) + classes[:, None]
    return x.astype(np.float32), classes


def of_tags(rng: np.random.Generator) -> tuple[Array, ...]:
    x = rng.standard_normal((BATCH, 12)).astype(np.float32)
    return x, (x[:, :CLASSES] > 0.3).astype(np.float32)


def of_speech(rng: np.random.Generator) -> tuple[Array, ...]:
    labels, count = rng.integers(1, CLASSES, (BATCH, 2)), rng.integers(1, 3, BATCH)
    x = rng.standard_normal((BATCH, 7, 6))
    x[:, 1:3] += np.eye(6)[labels[:, 0]][:, None] * 3
    x[:, 4:6] += np.eye(6)[labels[:, 1]][:, None] * 3 * (count == 2)[:, None, None]
    return x.astype(np.float32), labels, count


def of_faces(rng: np.random.Generator) -> tuple[Array, ...]:
    x = rng.standard_normal((3, BATCH, 12)).astype(np.float32)
    x[1, :, :4] = x[0, :, :4]
    return x[0], x[1], x[2]


NETS: dict[str, tuple[Callable[[], Any], Callable[[np.random.Generator], tuple[Array, ...]]]] = {
    "segmenter": (Segmenter, of_pictures),
    "tagger": (Tagger, of_tags),
    "speech": (Speech, of_speech),
    "faces": (Faces, of_faces),
    "student": (Student, lambda rng: of_tags(rng)[:1]),
}
RATES = {"segmenter": 0.02, "tagger": 0.1, "speech": 0.05, "faces": 0.02, "student": 0.1}


@dataclass(frozen=True)
class Masters:
    """Float32 parameters, trained by momentum on the gradients of a copy in another format."""

    net: Any
    optimizer: Any
    dtype: Any

    def step(self, inputs: Any) -> float:
        low = copy.deepcopy(self.net)
        for parameter in low.parameters():
            parameter.data = parameter.data.to(self.dtype)
        fed = (x.to(self.dtype) if x.is_floating_point() else x for x in inputs)
        with AsAGpu(), Autocast():
            loss = low(*fed)
            (SCALE * loss).backward()
        for own, other in zip(self.net.parameters(), low.parameters(), strict=True):
            own.grad = None if other.grad is None else other.grad.float() / SCALE
        self.optimizer.step()
        return float(loss.detach())


def masters(net: Any, rate: float, name: str, seed: int | None = None) -> Masters:
    """Return a net in training, moved by float32's rounding where a seed is given."""
    net = copy.deepcopy(net)
    if seed is not None:
        noise = torch.Generator().manual_seed(seed)
        for p in net.parameters():
            p.data *= 1 + JITTER[name] * torch.randn(p.shape, generator=noise)
    return Masters(net, torch.optim.SGD(net.parameters(), rate, 0.9), getattr(torch, name))


def policy_of(layers: tuple[str, ...], name: str) -> Policy:
    """Return the policy of float32 parameters and a copy of the net in a format, under autocast."""
    base = preset("float32" if name == "float32" else f"torch.autocast.{name}", layers)
    own = tuple((layer, uniform_layer(name, param=name)) for layer in layers)
    return replace(base, layers=own, loss_scale=LossScale("fixed", init_scale=SCALE))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", NETS)
def test_it_trains_as_torch_does(kind: str, name: str) -> None:
    torch.manual_seed(0)
    make, batch = NETS[kind]
    net, rate = shaken(make()), RATES[kind]
    model = imported(net, batch(np.random.default_rng(0)), loss="own")
    task = Task(
        model=model, optimizer="momentum", learning_rate=rate, batch_size=BATCH, steps=STEPS
    )
    trainer = Trainer(model, task, policy_of(model.layer_names, name), seed=0)
    trainer.load(model.init(np.random.default_rng(0)))
    every = [masters(net, rate, name, seed) for seed in (None, *range(COPIES))]
    losses, noise = [], 0.0
    for step in range(STEPS):
        inputs = batch(np.random.default_rng(step))
        expected, *others = (each.step(tensors(inputs)) for each in every)
        loss, _, skipped = trainer.step(inputs, np.zeros(BATCH, np.int64))
        noise = max(noise, *(abs(other - expected) for other in others))
        losses.append((float(loss), expected, noise))
        assert not skipped
        assert abs(loss - expected) <= max(2e-6, 2.0 * noise), (step, losses[-1])
    assert np.mean([x for _, x, _ in losses[-5:]]) < 0.9 * losses[0][1]
