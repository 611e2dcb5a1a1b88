"""Nets made of reductions, products and windows train as torch does, in float32 and 16 bits."""

from __future__ import annotations

import copy
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
from tests.imported_steps import LOSS, Array, imported, shaken, tensors

pytestmark = pytest.mark.torch

STEPS, BATCH, CLASSES, SCALE = 50, 8, 5, 256.0
RATES = {"text": 0.1, "images": 0.02}
COPIES = 2
JITTER = {"float32": 1e-7, "float16": 1e-5, "bfloat16": 8e-5}
"""Of parameters: a hundredth of the epsilon of 16 bits, so that one cast in a hundred differs."""
TOKENS, TIME, WIDTH, HEADS = 17, 7, 16, 4


class TextNet(nn.Module):
    """Tokens with positions that leave padding out, rotated heads, and a masked mean."""

    turns: Any

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(TIME + 1, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, CLASSES)
        angles = torch.outer(torch.arange(TIME), 1.0 / 10.0 ** torch.arange(2.0))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles)[:, None])

    def turned(self, x: Any) -> Any:
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(-2).type_as(x)

    def forward(self, ids: torch.Tensor, kept: torch.Tensor) -> Any:
        numbers = kept.cumsum(1) * kept
        x = self.words(ids) + self.places(numbers)
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, -1)).unbind(2)
        alike = torch.einsum("bqhd,bkhd->bhqk", self.turned(q), self.turned(k))
        shares = (alike - alike.logsumexp(-1, keepdim=True)).exp()
        x = x + torch.einsum("bhqk,bkhd->bqhd", shares, v).flatten(2)
        x = (x * kept.unsqueeze(-1)).sum(1) / kept.sum(1, keepdim=True)
        x = x * kept.bool().any(1, keepdim=True) + self.places(torch.count_nonzero(kept, 1))
        x = x * (1 + kept.bool().all(1, keepdim=True))
        return self.head(x / x.norm(dim=-1, keepdim=True) * WIDTH**0.5)


class ImageNet(nn.Module):
    """Down by a convolution, up by interpolation, a border of reflections, statistics as pool."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1, padding_mode="reflect")
        self.down = nn.Conv2d(6, 6, 2, 2)
        self.deep = nn.Conv3d(1, 2, (3, 2, 2), padding=(1, 0, 0))
        self.line = nn.Conv1d(12, 6, 4, padding="same")
        self.head = nn.Linear(6 * 4, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        x = torch.tanh(x / x.std((2, 3), keepdim=True))
        low = self.deep(self.down(x).unsqueeze(1)).flatten(1, 2)
        high = F.interpolate(low, scale_factor=2, mode="bilinear")
        lines = self.line(F.adaptive_avg_pool2d(high, 4).flatten(2))
        x = x + lines.mean(2)[..., None, None]
        moments = x.std((2, 3)), x.amax((2, 3)), x.flatten(2).max(2)[0], x.mean((2, 3))
        return self.head(torch.cat(moments, 1))


@dataclass(frozen=True)
class Masters:
    """Float32 parameters, trained by momentum on the gradients of a copy in another format."""

    net: Any
    optimizer: Any
    dtype: Any

    def step(self, inputs: Any, labels: Array) -> float:
        low = copy.deepcopy(self.net)
        for parameter in low.parameters():
            parameter.data = parameter.data.to(self.dtype)
        with AsAGpu():
            logits = low(*(x.to(self.dtype) if x.is_floating_point() else x for x in inputs))
            loss = F.cross_entropy(logits.float(), torch.from_numpy(labels))
            (SCALE * loss).backward()
        for own, other in zip(self.net.parameters(), low.parameters(), strict=True):
            own.grad = other.grad.float() / SCALE
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
    """Return the policy of float32 parameters and a copy of the net in a format."""
    base = preset("float32" if name == "float32" else "apex.O2", layers)
    own = tuple((layer, uniform_layer(name, param=name)) for layer in layers)
    scale = LossScale("fixed", init_scale=SCALE)
    return replace(base, layers=own, loss_scale=scale)


def batch(kind: str, step: int) -> tuple[tuple[Array, ...], Array]:
    rng = np.random.default_rng(step)
    labels = rng.integers(0, CLASSES, BATCH)
    if kind == "images":
        images = rng.standard_normal((BATCH, 2, 8, 8)).astype(np.float32)
        return (
            images
            + np.where(np.arange(8) == labels[:, None], 2.0, 0.0)[:, None, None].astype(np.float32),
        ), labels
    ids = rng.integers(1, TOKENS, (BATCH, TIME))
    ids[:, 0] = labels + 1
    kept = (np.arange(TIME) < rng.integers(3, TIME + 1, (BATCH, 1))).astype(np.int64)
    return (ids * kept, kept), labels


NETS = {"text": TextNet, "images": ImageNet}


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", NETS)
def test_it_trains_as_torch_does(kind: str, name: str) -> None:
    torch.manual_seed(0)
    net = shaken(NETS[kind]())
    inputs, _ = batch(kind, 0)
    model = imported(net, inputs)
    task = Task(
        model=model,
        loss=LOSS,
        optimizer="momentum",
        learning_rate=RATES[kind],
        batch_size=BATCH,
        steps=STEPS,
    )
    trainer = Trainer(model, task, policy_of(model.layer_names, name), seed=0)
    trainer.load(model.init(np.random.default_rng(0)))
    every = [masters(net, RATES[kind], name, seed) for seed in (None, *range(COPIES))]
    losses, noise = [], 0.0
    for step in range(STEPS):
        inputs, labels = batch(kind, step)
        expected, *others = (each.step(tensors(inputs), labels) for each in every)
        loss, _, skipped = trainer.step(inputs, labels)
        noise = max(noise, *(abs(other - expected) for other in others))
        losses.append((float(loss), expected, noise))
        assert not skipped
        assert abs(loss - expected) <= max(2e-6, 2.0 * noise), (step, losses[-1])
    assert np.mean([x for _, x, _ in losses[-5:]]) < 0.9 * losses[0][1]
