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
