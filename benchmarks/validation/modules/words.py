"""Language models, translators and speech models as transformers, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.validation.modules.texts import FeedForward

DECODERS = {
    "gpt2": (768, 12, 12, 50257),
    "gpt2-medium": (1024, 24, 16, 50257),
    "gpt2-large": (1280, 36, 20, 50257),
}
"""Width, blocks, heads and words."""

PAIRS = {
    "transformer-base": (512, 6, 8, 2048, 33712),
    "transformer-big": (1024, 6, 16, 4096, 33712),
    "bart-base": (768, 6, 12, 3072, 50265),
    "bart-large": (1024, 12, 16, 4096, 50265),
    "t5-small": (512, 6, 8, 2048, 32128),
    "t5-base": (768, 12, 12, 3072, 32128),
    "whisper-base": (512, 6, 8, 2048, 51865),
    "whisper-small": (768, 12, 12, 3072, 51865),
}
"""Width, blocks on each side, heads, inner width and words."""


class Attention(nn.Module):
    """Attention of a text to itself, `causal` or not, or to a memory; no norm of its own."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Any) -> Any:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Any, memory: Any, bias: Any = None) -> Any:
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.value(memory)
        mixed = F.scaled_dot_product_attention(
            q, k, self.split(v), bias, is_causal=self.causal and bias is None
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block with its norms in front: attention, attention to a memory if any, feed-forward."""

    def __init__(
        self, width: int, heads: int, inner: int, causal: bool, crossed: bool, gelu: bool = True
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal)
        self.crossed = Attention(width, heads) if crossed else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if crossed else 2))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.gelu = gelu

    def dropped(self, x: Any) -> Any:
        return F.dropout(x, 0.1, self.training)

    def forward(self, x: Any, memory: Any = None, bias: Any = None) -> Any:
        seen = self.norms[0](x)
        x = x + self.dropped(self.attention(seen, seen, bias))
        if self.crossed is not None:
            x = x + self.dropped(self.crossed(self.norms[1](x), memory))
        up = self.up(self.norms[-1](x))
        return x + self.dropped(self.down(F.gelu(up) if self.gelu else F.relu(up)))


class Decoder(nn.Module):
    """GPT-2 (Radford et al., 2019): the next word of every position, its product tied."""

    def __init__(self, width: int, blocks: int, heads: int, rows: int, length: int) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(rows, width),
            nn.Parameter(torch.zeros(length, width)),
        )
        self.blocks = nn.ModuleList(
            Block(width, heads, 4 * width, causal=True, crossed=False) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Any) -> Any:
        x = F.dropout(self.words(words) + self.places, 0.1, self.training)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.words.weight)


class Pair(nn.Module):
    """An encoder and a decoder; with `frames` it hears, with `near` places are a learned bias."""

    def __init__(
        self, size: tuple[int, ...], length: int, frames: bool, near: bool, gelu: bool
    ) -> None:
        super().__init__()
        width, blocks, heads, inner, rows = size
        self.words = nn.Embedding(rows, width)
        self.first = nn.Conv1d(80, width, 3, padding=1) if frames else None
        self.second = nn.Conv1d(width, width, 3, 2, 1) if frames else None
        self.biases = nn.ParameterList(
            nn.Parameter(torch.zeros(1, heads, length, length)) for _ in range(2 if near else 0)
        )
        self.encoder = nn.ModuleList(
            Block(width, heads, inner, False, False, gelu) for _ in range(blocks)
        )
        self.decoder = nn.ModuleList(
            Block(width, heads, inner, True, True, gelu) for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, source: Any, target: Any) -> Any:
        if self.first is not None and self.second is not None:
            memory = F.gelu(self.second(F.gelu(self.first(source)))).transpose(1, 2)
        else:
            memory = self.words(source)
        there, here = self.biases if len(self.biases) else (None, None)
        for block in self.encoder:
            memory = block(memory, None, there)
        memory, x = self.norms[0](memory), self.words(target)
        for block in self.decoder:
            x = block(x, memory, here)
        return F.linear(self.norms[1](x), self.words.weight)


class Encoder(nn.Module):
    """DistilBERT or ELECTRA's small generator-sized net with the words of all positions."""

    def __init__(self, width: int, blocks: int, heads: int, rows: int, length: int) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(rows, width),
            nn.Parameter(torch.zeros(length, width)),
        )
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                (Attention(width, heads), nn.LayerNorm(width), FeedForward(width, 4 * width))
            )
            for _ in range(blocks)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))

    def forward(self, words: Any) -> Any:
        x = F.dropout(self.norm(self.words(words) + self.places), 0.1, self.training)
        for attention, norm, wide in self.blocks:
            x = wide(norm(x + F.dropout(attention(x, x), 0.1, self.training)))
        return F.linear(self.head(x), self.words.weight)


ENCODERS = {
    "bert-base-mlm": (768, 12, 12, 30522),
    "roberta-base": (768, 12, 12, 50265),
    "distilbert": (768, 6, 12, 30522),
    "electra-small": (256, 12, 4, 30522),
}
"""Width, blocks, heads and words."""


def encoder(name: str, length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return an encoder that tells words, and example inputs: words."""
    return Encoder(*ENCODERS[name], length), (torch.zeros(2, length, dtype=torch.long),)


def decoder(name: str, length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return a decoder and example inputs: words."""
    return Decoder(*DECODERS[name], length), (torch.zeros(2, length, dtype=torch.long),)


def pair(name: str, length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return an encoder with a decoder, and example inputs: words or frames, and words."""
    frames, words = "whisper" in name, torch.zeros(2, length, dtype=torch.long)
    net = Pair(PAIRS[name], length, frames, "t5" in name, name.startswith(("bart", "whisper")))
    return net, (torch.zeros(2, 80, 3000) if frames else words, words)
