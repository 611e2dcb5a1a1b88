"""Nets that route, look up, stop gradients, draw and pair their examples, as written in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, CLASSES, EXPERTS = 8, 5, 4


class Mixture(nn.Module):
    """Two of four experts for each example, computed for all and weighted by a scattered gate.

    A bias in float32 decides between experts of equal scores, as in DeepSeek-V3.
    """

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(WIDTH, EXPERTS, bias=False), nn.Linear(WIDTH, CLASSES)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))
            for _ in range(EXPERTS)
        )
        self.register_buffer("bias", 1e-5 * torch.arange(EXPERTS))

    def forward(self, x: Tensor) -> Any:
        scores = self.gate(x)
        chosen = (scores.float() + self.bias).topk(2, -1)[1]
        shares = scores.gather(1, chosen).softmax(-1)
        weights = torch.zeros(len(x), EXPERTS, dtype=shares.dtype).scatter(1, chosen, shares)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head((weights[..., None] * outputs).sum(1))


class Quantised(nn.Module):
    """A code book with a straight-through gradient, and what it has been used for (a buffer)."""

    used: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)
        self.book = nn.Embedding(7, 6)
        self.register_buffer("used", torch.zeros(6))

    def forward(self, x: Tensor) -> Any:
        z = self.encoder(x)
        distances = (z[:, None] - self.book.weight[None]).pow(2).sum(-1)
        nearest = self.book(distances.argmin(1))
        if self.training:
            with torch.no_grad():
                self.used.mul_(0.9).add_(nearest.mean(0), alpha=0.1)
        commitment = ((nearest - z.detach()) ** 2).mean() + 0.25 * (
            (nearest.detach() - z) ** 2
        ).mean()
        return self.head(z + (nearest - z).detach()) + commitment


class Bootstrapped(nn.Module):
    """An online net that predicts a frozen target, as BYOL; its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 6)
        self.predictor = nn.Linear(6, 6)
        self.target.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        predicted = self.predictor(torch.tanh(self.online(x))).float()
        with torch.no_grad():
            wanted = torch.tanh(self.target(y)).float()
        return (predicted - wanted).pow(2).mean() - (0.1 * predicted * predicted.detach()).mean()


class Windowed(nn.Module):
    """Attention in a window with relative positions, as Swin's."""

    places: Tensor

    def __init__(self, side: int = 3, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, CLASSES)
        self.table = nn.Parameter(0.1 * torch.randn((2 * side - 1) ** 2, heads))
        axes = torch.arange(side), torch.arange(side)
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)
        relative = (grid[:, :, None] - grid[:, None]).permute(1, 2, 0) + side - 1
        self.register_buffer("places", relative[..., 0] * (2 * side - 1) + relative[..., 1])

    def forward(self, x: Tensor) -> Any:
        batch, count, width = x.shape
        qkv = self.qkv(x).reshape(batch, count, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        alike = q * 0.5 @ k.transpose(-2, -1)
        bias = self.table[self.places.view(-1)].view(count, count, -1)
        weights = (alike + bias.permute(2, 0, 1).contiguous().unsqueeze(0)).softmax(-1)
        return self.head((weights @ v).transpose(1, 2).reshape(batch, count, width).mean(1))


class Paired(nn.Module):
    """Two encoders and a temperature, labels counted along the batch, as CLIP; its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 6)
        self.temperature = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        one, two = (z / z.pow(2).sum(-1, keepdim=True).sqrt() for z in (self.one(x), self.two(y)))
        alike = (self.temperature.exp() * one @ two.t()).float()
        labels = torch.arange(len(x))
        losses = (functional.cross_entropy(each, labels) for each in (alike, alike.t()))
        return sum(losses) / 2


class Variational(nn.Module):
    """An autoencoder whose code is drawn; its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 8), nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Any:
        mean, variance = self.encoder(x).chunk(2, -1)
        deviation = (0.5 * variance).exp()
        code = mean + torch.randn_like(mean) * deviation
        mean, variance, deviation = (y.float() for y in (mean, variance, deviation))
        divergence = (deviation * deviation + mean * mean - 1.0 - variance).mean()
        return functional.mse_loss(self.decoder(code).float(), x.float()) + 0.1 * divergence


class Moving(nn.Module):
    """Reads a buffer that it moves; `way` says how."""

    seen: Tensor

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.fc = way, nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.ones(WIDTH))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.steps += 1
        if self.way == "in place":
            self.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))
        elif self.way == "in part":
            self.seen[1:].mul_(0.9)
            self.seen[:4] += 0.01 * x[0, :4].detach()
        elif self.way == "by a name":
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
        elif self.training:
            with torch.no_grad():
                self.seen.copy_(0.9 * self.seen + 0.1 * (x * self.seen).mean(0))
        return self.fc(x * self.seen)


class Dropping(nn.Module):
    """Drops paths as timm, torchvision and transformers do, and channels."""

    one_only: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, 12), nn.Linear(12, CLASSES)
        self.register_buffer("one_only", torch.ones(1))

    def forward(self, x: Tensor) -> Any:
        x = self.one(x)
        if not self.training:
            return self.two(x)
        kept = x.new_empty(x.shape[0], 1).bernoulli_(0.9).div_(0.9)
        noise = torch.empty((x.shape[0], 1), dtype=x.dtype).bernoulli_(0.7).div_(0.7)
        whole = torch.bucketize(0.7 + torch.rand((x.shape[0], 1), dtype=x.dtype), self.one_only)
        x = torch.where(whole.bool(), x * kept * noise, 0.5 * x)
        x = functional.dropout1d(x.unflatten(1, (4, 3)), 0.3).flatten(1)
        return self.two(functional.alpha_dropout(x, 0.2, True))


class Drawing(nn.Module):
    """Draws in evaluation too: noise of several kinds, other examples, a step of diffusion."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(WIDTH, 12), nn.Linear(12, CLASSES)
        self.steps = nn.Embedding(10, 12)

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        y = y + self.steps(torch.randint(0, 10, (len(x),)))
        y = 0.5 * y + 0.5 * y[torch.randperm(len(x))]
        y = y + 0.1 * torch.empty_like(y).exponential_() + torch.rand_like(y)
        y = y * torch.bernoulli(torch.sigmoid(y).detach())
        return self.head(y + 0.1 * torch.zeros_like(y).normal_(0.5, 2.0))


def rows(rng: np.random.Generator, batch: int) -> tuple[Any, ...]:
    """Return values that float16 and bfloat16 hold."""
    return (np.round(8.0 * rng.standard_normal((batch, WIDTH))).astype(np.float32) / 8.0,)


def two_rows(rng: np.random.Generator, batch: int) -> tuple[Any, ...]:
    return (*rows(rng, batch), *rows(rng, batch))


def window(rng: np.random.Generator, batch: int) -> tuple[Any, ...]:
    return (rng.standard_normal((batch, 9, WIDTH)).astype(np.float32),)


NETS: dict[str, tuple[Any, Any, bool]] = {
    "a mixture of experts": (Mixture, rows, False),
    "a code book": (Quantised, rows, False),
    "a frozen target": (Bootstrapped, two_rows, True),
    "relative positions": (Windowed, window, False),
    "pairs": (Paired, two_rows, True),
    "a drawn code": (Variational, rows, True),
}
"""By name: the module, inputs of a batch, and whether it returns its own loss."""

DRAWN: dict[str, Any] = {"dropped": Dropping, "drawn": Drawing}
WAYS = ("in place", "in part", "by a name", "without gradients")
