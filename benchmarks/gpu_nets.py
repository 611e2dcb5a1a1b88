"""Nets of `benchmarks/gpu_memory.py`, under the names of the cost model's catalogue.

Own definitions, so that nothing is downloaded; random batches on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 30528


@dataclass(frozen=True)
class Net:
    """A net, its batches, and how a batch of inputs and target is made.

    `length` is that of a sequence; `halves` whether it runs with parameters in float16.
    """

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[int, str], tuple[Tensor, ...]]
    loss: Callable[[Any, Tensor], Tensor]
    batches: tuple[int, ...]
    length: int | None = None
    halves: bool = True


class Bottleneck(nn.Module):
    def __init__(self, n_in: int, width: int, stride: int) -> None:
        super().__init__()
        n_out = 4 * width
        self.inner = nn.Sequential(
            *(nn.Conv2d(n_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, n_out, 1, bias=False), nn.BatchNorm2d(n_out)),
        )
        self.side = (
            nn.Identity()
            if n_in == n_out
            else nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        inner += self.side(x)
        return self.relu(inner)


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    n_in = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(n_in, width, 2 if i == 0 and width > 64 else 1))
            n_in = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16() -> nn.Module:
    layers: list[nn.Module] = []
    n_in = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(n_in, width, 3, padding=1), nn.ReLU(inplace=True)]
            n_in = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for a, b in ((25088, 4096), (4096, 4096)):
        layers += [nn.Linear(a, b), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


def convnet() -> nn.Module:
    """Six convolutions on 32 x 32 images, as small nets have them."""
    layers: list[nn.Module] = []
    for n_in, n_out in ((3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)):
        layers += [nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU()]
        if n_in == n_out:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


class Block(nn.Module):
    """A layer of BERT with its attention op by op."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out, self.wide = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (made(x).view(split).transpose(1, 2) for made in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) / math.sqrt(split[3])
        scores = scores + torch.zeros(batch, 1, 1, length, device=x.device, dtype=scores.dtype)
        seen = self.dropout(functional.softmax(scores, -1)) @ v
        seen = seen.transpose(1, 2).reshape(batch, length, width)
        x = self._normed(0, self.dropout(self.out(seen)) + x)
        inner = self.narrow(functional.gelu(self.wide(x)))
        return self._normed(1, self.dropout(inner) + x)

    def _normed(self, place: int, x: Tensor) -> Tensor:
        return normed(self.norms[place], x)


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """Apply a float32 norm to x of any format; the result has x's."""
    cast = not torch.is_autocast_enabled() and x.dtype != torch.float32
    made: Tensor = norm(x.float()).to(x.dtype) if cast else norm(x)
    return made


class Bert(nn.Module):
    """BERT-base: the ends of an answer, or a share of the tokens (`masked`)."""

    def __init__(self, masked: float) -> None:
        super().__init__()
        width = 768
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(512, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block(width, 12) for _ in range(12)))
        self.masked = masked
        if masked:
            self.transform, self.head_norm = nn.Linear(width, width), nn.LayerNorm(width)
        else:
            self.ends = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        x = self.blocks(self.dropout(normed(self.norm, x)))
        if not self.masked:
            ends: Tensor = self.ends(x)
            return ends.transpose(1, 2).reshape(-1, tokens.shape[1])
        x = x[:, : max(1, round(self.masked * x.shape[1]))].reshape(-1, x.shape[2])
        x = normed(self.head_norm, functional.gelu(self.transform(x)))
        return functional.linear(x, self.words.weight)


class Recommender(nn.Module):
    """NeuMF of MovieLens-20M."""

    def __init__(self) -> None:
        super().__init__()
        rows = (138493, 26744)
        self.factors = nn.ModuleList(nn.Embedding(n, 64) for n in rows)
        self.tables = nn.ModuleList(nn.Embedding(n, 128) for n in rows)
        layers: list[nn.Module] = []
        for a, b in pairwise((256, 256, 128, 64)):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout()]
        self.inner, self.out = nn.Sequential(*layers), nn.Linear(128, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        both = [[t(pairs[i]) for i, t in enumerate(ts)] for ts in (self.factors, self.tables)]
        inner = self.inner(torch.cat(both[1], -1))
        made: Tensor = self.out(torch.cat((both[0][0] * both[0][1], inner), -1))
        return made.squeeze(-1)


def _classes(shape: tuple[int, ...], classes: int) -> Callable[[int, str], tuple[Tensor, ...]]:
    def batch(n: int, device: str) -> tuple[Tensor, ...]:
        target = torch.randint(classes, (n,), device=device)
        return torch.randn(n, *shape, device=device), target

    return batch


def _ends(n: int, device: str) -> tuple[Tensor, ...]:
    tokens = torch.randint(VOCABULARY, (n, 384), device=device)
    return tokens, torch.randint(384, (2 * n,), device=device)


def _masked(n: int, device: str) -> tuple[Tensor, ...]:
    tokens = torch.randint(VOCABULARY, (n, 128), device=device)
    return tokens, torch.randint(VOCABULARY, (19 * n,), device=device)


def _rated(n: int, device: str) -> tuple[Tensor, ...]:
    pairs = torch.stack([torch.randint(r, (n,), device=device) for r in (138493, 26744)])
    return pairs, torch.rand(n, device=device).round()


def _cross_entropy(made: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(made.float(), target)


def _logistic(made: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(made.float(), target)


def _images(name: str, model: Callable[[], nn.Module], batches: tuple[int, ...]) -> Net:
    return Net(name, model, _classes((3, 224, 224), 1000), _cross_entropy, batches)


NETS = (
    _images("resnet50", resnet50, (32, 128, 256)),
    Net("bert-base-squad", lambda: Bert(0), _ends, _cross_entropy, (4, 16, 32), 384),
    Net("mlp-8x4096", mlp, _classes((4096,), 1000), _cross_entropy, (64, 2048, 16384)),
    Net("convnet-32", convnet, _classes((3, 32, 32), 10), _cross_entropy, (256, 2048)),
    Net("ncf", Recommender, _rated, _logistic, (250_000, 1_000_000)),
    _images("vgg16", vgg16, (16, 64)),
    Net("bert-base", lambda: Bert(0.15), _masked, _cross_entropy, (16, 64), 128),
)
"""The most telling first, for the case that time runs out."""
