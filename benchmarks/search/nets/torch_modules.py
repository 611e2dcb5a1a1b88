"""Nets of torch that are imported: a recurrent one, and one of many layers."""

from __future__ import annotations

import torch
from torch import nn


class Rows(nn.Module):
    """Two GRUs over the rows of a digit, and a head on what the last row leaves."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, width), nn.Tanh())
        self.gru1 = nn.GRU(width, width, batch_first=True)
        self.gru2 = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, 10] of images [batch, 1, 8, 8]."""
        first, _ = self.gru1(self.embed(images.squeeze(1)))
        second, _ = self.gru2(first)
        logits: torch.Tensor = self.head(second[:, -1])
        return logits


def rows() -> nn.Module:
    """Return the recurrent net."""
    return Rows()


class Block(nn.Module):
    """A norm, a layer to twice the width and one back, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, width] of the same."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Deep(nn.Module):
    """A residual net: two linear layers, and two a block."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, 10] of images [batch, 1, 8, 8]."""
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.embed(images.flatten(1)))))
        return logits


def deep() -> nn.Module:
    """Return the net of 42 linear layers that is trained."""
    return Deep(16, 20)


def wide() -> nn.Module:
    """Return the one that is priced, whose layers are called alike."""
    return Deep(2048, 20)
