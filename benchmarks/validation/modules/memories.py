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

SIZES = {"base": (16, 512, 8, 2048, 0.0), "large": (18, 1024, 16, 4096, 0.2)}
"""Blocks, width, heads, inner width and the share of attention that is dropped, as NVIDIA's scripts
have them (DeepLearningExamples, PyTorch/LanguageModeling/Transformer-XL/pytorch/wt103_*.yaml)."""

CUTS = (0, 19997, 39997, 199997, ROWS)

SHARES = (1.0, 0.008, 0.015, 0.0025)
"""Of all tokens, those whose words are in each part of the vocabulary: by Zipf's law from a first
word that is 6 % of 103 million to a last that occurs three times."""


class RelativeAttention(nn.Module):
    """Attention of a segment to itself and its memory, by content and by distance."""

    def __init__(self, width: int, heads: int, dropped: float) -> None:
        super().__init__()
        self.heads, self.dropped = heads, dropped
        self.all = nn.Linear(width, 3 * width, bias=False)
        self.out, self.distance = (nn.Linear(width, width, bias=False) for _ in "od")
        self.norm = nn.LayerNorm(width)

    def split(self, x: Any) -> Any:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(self, x: Any, memory: Any, biases: Any, distances: Any, mask: Any) -> Any:
        query, key, value = (self.split(part) for part in self.all(memory).chunk(3, 2))
        query = query[:, :, -x.shape[1] :] / query.shape[3] ** 0.5
        content, place = biases
        by_content = (query + content) @ key.transpose(2, 3)
        by_place = (query + place) @ self.split(self.distance(distances)).transpose(1, 2)
        rows, columns = by_place.shape[2:]
        padded = F.pad(by_place, (1, 0)).reshape(-1, self.heads, columns + 1, rows)
        shifted = padded[:, :, 1:].reshape(-1, self.heads, rows, columns)
        shares = torch.softmax(by_content + shifted + mask, 3)
        if self.dropped:
            shares = F.dropout(shares, self.dropped, self.training)
        mixed = self.out((shares @ value).transpose(1, 2).flatten(2))
        return self.norm(x + F.dropout(mixed, 0.1, self.training))


class TransformerXl(nn.Module):
    """Transformer-XL with memory, and its own loss (Dai et al., 2019).

    With `adaptive` softmax the first tokens stand in for those whose words are in a part of the
    vocabulary, and the products over it are by weights of their own width of each part. Without,
    all words are told at all positions by the embedding's own weights.
    """

    def __init__(self, size: str, adaptive: bool, length: int) -> None:
        super().__init__()
        blocks, width, heads, inner, dropped = SIZES[size]
        self.length = length
        self.words = nn.Embedding(ROWS, width)
        self.content = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.place = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.register_buffer("distances", torch.randn(2 * length, width))
        self.register_buffer("mask", torch.zeros(length, 2 * length))
        layers: list[nn.Module] = []
        for _ in range(blocks):
            attention = RelativeAttention(width, heads, dropped)
            layers += [attention, FeedForward(width, inner, gelu=False)]
        self.blocks = nn.ModuleList(layers)
        if adaptive:
            sizes = [end - start for start, end in pairwise(CUTS)]
            self.parts = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        else:
            self.parts, self.bias = None, nn.Parameter(torch.zeros(ROWS))

    def told(self, x: Any) -> Any:
        """Return the loss of what is told of the words."""
        if self.parts is None:
            scores = torch.log_softmax(F.linear(x, self.words.weight, self.bias), 2)
            return -scores[:, :, 0].mean()
        loss = 0.0
        for part, share in zip(self.parts, SHARES, strict=True):
            some = x[:, : max(1, round(self.length * share))]
            loss = loss - torch.log_softmax(part(some), 2)[:, :, 0].mean()
        return loss

    def forward(self, words: Any, memory: Any) -> Any:
        x = F.dropout(self.words(words), 0.1, self.training)
        biases = self.content, self.place
        for place, block in enumerate(self.blocks):
            if isinstance(block, RelativeAttention):
                both = torch.cat([memory[:, place // 2], x], 1)
                x = block(x, both, biases, self.distances, self.mask)
            else:
                x = block(x)
        return self.told(F.dropout(x, 0.1, self.training))


def transformer_xl(size: str, adaptive: bool, length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: words, and the memories of all blocks."""
    blocks, width, *_ = SIZES[size]
    words = torch.zeros(2, length, dtype=torch.long)
    net = TransformerXl(size, adaptive, length)
    return net, (words, torch.zeros(2, blocks, length, width))
