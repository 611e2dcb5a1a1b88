"""A GPT of two blocks whose feed-forward layers are four experts, two for each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, INNER, HEADS, EXPERTS = 32, 64, 4, 4


class Attention(nn.Module):
    """Attention that looks back alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        made = (self.q(x), self.k(x), self.v(x))
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in made)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(seen.transpose(1, 2).flatten(2))
        return out


class Mixture(nn.Module):
    """All experts, weighted by a gate that is zero for all but two."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, INNER), nn.GELU(), nn.Linear(INNER, WIDTH))
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        best, chosen = scores.topk(2, -1)
        shares = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(-1))
        given = torch.stack([expert(x) for expert in self.experts], -2)
        out: Tensor = (shares[..., None] * given).sum(-2)
        return out


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mixture = Attention(), Mixture()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mixture(self.norm2(x))
        return out


class Net(nn.Module):
    """The net for [time] tokens of so many classes; it returns [batch, time, classes]."""

    def __init__(self, time: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(time, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out
