"""Transformers and recurrent translators in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BERT_ROWS = 30528
"""Rows of BERT's vocabulary, padded to a multiple of 8."""


class Attention(nn.Module):
    """Attention of the last positions of a memory to all of it, heads of 64; dropout 0.1."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def split(self, x: Any) -> Any:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Any, mask: Any) -> Any:
        query, key, value = (self.split(f(x)) for f in (self.query, self.key, self.value))
        dropped = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropped)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        return self.norm(x + F.dropout(mixed, 0.1, self.training))


class FeedForward(nn.Module):
    """Two products with GELU or, with dropout behind it, ReLU between them."""

    def __init__(self, width: int, inner: int, gelu: bool = True) -> None:
        super().__init__()
        self.gelu, self.up, self.down = gelu, nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        up = self.up(x)
        inner = F.gelu(up) if self.gelu else F.dropout(F.relu(up), 0.1, self.training)
        return self.norm(x + F.dropout(self.down(inner), 0.1, self.training))


def _blocks(width: int, heads: int, count: int) -> nn.ModuleList:
    """Return so many blocks of an encoder: attention and products by turns."""
    layers: list[nn.Module] = []
    for _ in range(count):
        layers += [Attention(width, heads), FeedForward(width, 4 * width)]
    return nn.ModuleList(layers)


def _through(blocks: nn.ModuleList, x: Any, mask: Any) -> Any:
    for block in blocks:
        x = block(x, mask) if isinstance(block, Attention) else block(x)
    return x


class Bert(nn.Module):
    """BERT or ELECTRA's discriminator behind its embeddings, with the head of a `task`.

    "squad" tells two numbers of each token, "electra" one, "masked" the words of 15 % of them, of
    which the first stand in for those drawn; its product is tied to the embedding.
    """

    def __init__(self, size: str, task: str, length: int) -> None:
        super().__init__()
        width, heads, blocks = (768, 12, 12) if size == "base" else (1024, 16, 24)
        self.task, self.masked = task, max(1, round(length * 0.15))
        self.words = nn.Embedding(BERT_ROWS, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = _blocks(width, heads, blocks)
        if task == "squad":
            self.head: nn.Module = nn.Linear(width, 2)
        else:
            last = nn.LayerNorm(width) if task == "masked" else nn.Linear(width, 1)
            self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), last)

    def embedded(self, words: Any, kinds: Any) -> Any:
        x = self.norm(self.words(words) + self.kinds(kinds) + self.places)
        return F.dropout(x, 0.1, self.training)

    def forward(self, words: Any, kinds: Any, mask: Any) -> Any:
        x = _through(self.blocks, self.embedded(words, kinds), mask)
        if self.task != "masked":
            return self.head(x)
        return F.linear(self.head(x[:, : self.masked]), self.words.weight)


def bert(size: str, task: str, length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: words, segments and an additive mask of two texts."""
    words = torch.zeros(2, length, dtype=torch.long)
    kinds = torch.zeros(2, length, dtype=torch.long)
    return Bert(size, task, length), (words, kinds, torch.zeros(2, 1, 1, length))


class Electra(nn.Module):
    """ELECTRA's pretraining: a generator of a third of the width, and the discriminator.

    As NVIDIA's script has it, with shared embeddings: the generator tells words at all positions,
    of which 15 % count (`TensorFlow2/LanguageModeling/ELECTRA/modeling.py`); returns its own loss.
    """

    def __init__(self, length: int, inner: int = 256, blocks: int = 12) -> None:
        super().__init__()
        self.told = Bert("base", "electra", length)
        width = self.told.words.embedding_dim
        self.narrow = nn.Linear(width, inner)
        self.blocks = _blocks(inner, inner // 64, blocks)
        self.head = nn.Sequential(nn.Linear(inner, width), nn.GELU(), nn.LayerNorm(width))

    def guessed(self, words: Any, kinds: Any, mask: Any) -> Any:
        """Return the generator's scores of the positions that are masked."""
        x = _through(self.blocks, self.narrow(self.told.embedded(words, kinds)), mask)
        scores = F.linear(self.head(x), self.told.words.weight)
        return scores[:, : self.told.masked]

    def forward(self, words: Any, kinds: Any, mask: Any) -> Any:
        scores = self.guessed(words, kinds, mask)
        wanted = words[:, : self.told.masked]
        first = F.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        replaced = self.told(words, kinds, mask).squeeze(2)
        return first + 50.0 * F.binary_cross_entropy_with_logits(replaced, kinds.float())


def electra(length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs, as those of `bert`."""
    return Electra(length), bert("base", "squad", length)[1]


class Gnmt(nn.Module):
    """GNMT v2: 4 encoder and 4 decoder layers of 1024, additive attention (Wu et al., 2016)."""

    def __init__(self, width: int = 1024, rows: int = 32320) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(rows, width), nn.Embedding(rows, width)
        self.both = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.encoder = nn.ModuleList(
            nn.LSTM(w, width, batch_first=True) for w in (2 * width, width, width)
        )
        self.first = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(3))
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Parameter(torch.zeros(width))
        self.classes = nn.Linear(width, rows)

    def dropped(self, x: Any) -> Any:
        return F.dropout(x, 0.2, self.training)

    def forward(self, source: Any, target: Any) -> Any:
        memory, _ = self.both(self.dropped(self.source(source)))
        for place, layer in enumerate(self.encoder):
            moved, _ = layer(self.dropped(memory))
            memory = moved if place == 0 else moved + memory
        x, _ = self.first(self.dropped(self.target(target)))
        both = torch.tanh(self.query(x).unsqueeze(2) + self.key(memory).unsqueeze(1))
        scores = (both * self.score).sum(3)
        context = torch.softmax(scores, 2) @ memory
        for place, layer in enumerate(self.decoder):
            moved, _ = layer(self.dropped(torch.cat([x, context], 2)))
            x = moved if place == 0 else moved + x
        return self.classes(x)


def gnmt(length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs, sentences of `length` on both sides."""
    return Gnmt(), (torch.zeros(2, length, dtype=torch.long),) * 2
