"""Transformer-XL in plain torch: relative attention over a memory as long as the segment."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.validation.modules.texts import FeedForward

ROWS = 267735
"""Words of WikiText-103."""

SIZES = {"base": (16, 512, 8, 2048), "large": (18, 1024, 16, 4096)}
"""Blocks, width, heads and inner width."""

CUTS = {"base": (0, 19997, 39997, 199997, ROWS), "large": (0, 19997, 39997, 199997, ROWS)}
SHARES = (1.0, 0.2, 0.1, 0.05)
"""Of all tokens, those whose words are in each part of the vocabulary; assumed."""


class RelativeAttention(nn.Module):
    """Attention of a segment to itself and its memory, by content and by distance."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out, self.distance = (nn.Linear(width, width, bias=False) for _ in "qod")
        self.both = nn.Linear(width, 2 * width, bias=False)
        self.content = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.place = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.norm = nn.LayerNorm(width)

    def split(self, x: Any) -> Any:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(self, x: Any, memory: Any, distances: Any, mask: Any) -> Any:
        query = self.split(self.query(x))
        key, value = (self.split(part) for part in self.both(memory).chunk(2, 2))
        by_content = (query + self.content) @ key.transpose(2, 3)
        by_place = (query + self.place) @ self.split(self.distance(distances)).transpose(1, 2)
        rows, columns = by_place.shape[2:]
        padded = F.pad(by_place, (1, 0)).reshape(-1, self.heads, columns + 1, rows)
        shifted = padded[:, :, 1:].reshape(-1, self.heads, rows, columns)
        scores = (by_content + shifted) / query.shape[3] ** 0.5 + mask
        shares = F.dropout(torch.softmax(scores, 3), 0.1, self.training)
        mixed = self.out((shares @ value).transpose(1, 2).flatten(2))
        return self.norm(x + F.dropout(mixed, 0.1, self.training))


class TransformerXl(nn.Module):
    """Transformer-XL with adaptive softmax (Dai et al., 2019); returns its own loss.

    The first tokens stand in for those whose words are in a part of the vocabulary. Its products
    over the vocabulary are by weights of their own width of each part.
    """

    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        blocks, width, heads, inner = SIZES[size]
        self.length = length
        self.words = nn.Embedding(ROWS, width)
        self.register_buffer("distances", torch.randn(2 * length, width))
        self.register_buffer("mask", torch.zeros(length, 2 * length))
        layers: list[nn.Module] = []
        for _ in range(blocks):
            layers += [RelativeAttention(width, heads), FeedForward(width, inner, gelu=False)]
        self.blocks = nn.ModuleList(layers)
        cuts = CUTS[size]
        self.parts = nn.ModuleList(nn.Linear(width, end - start) for start, end in pairwise(cuts))

    def forward(self, words: Any, memory: Any) -> Any:
        x = F.dropout(self.words(words), 0.1, self.training)
        for place, block in enumerate(self.blocks):
            if isinstance(block, RelativeAttention):
                both = torch.cat([memory[:, place // 2], x], 1)
                x = block(x, both, self.distances, self.mask)
            else:
                x = block(x)
        loss = 0.0
        for part, share in zip(self.parts, SHARES, strict=True):
            told = x[:, : max(1, round(self.length * share))]
            loss = loss - torch.log_softmax(part(told), 2)[:, :, 0].mean()
        return loss


def transformer_xl(size: str, length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: words, and the memories of all blocks."""
    blocks, width, *_ = SIZES[size]
    words = torch.zeros(2, length, dtype=torch.long)
    return TransformerXl(size, length), (words, torch.zeros(2, blocks, length, width))
