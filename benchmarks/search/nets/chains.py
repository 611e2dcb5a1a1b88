"""Nets of the tables that are never tuned on, of this package's own layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from policysearch.nn.attention import Embedding, Position, transformer_block
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Activation, Conv2d, Flatten, Layer, Linear, Pool, Squared
from policysearch.nn.norms import LayerNorm, RMSNorm

WORDS, TIME = 23, 32
"""Characters of the text of sums, and how many of them are seen at once."""


def normed_mlp() -> Chain:
    """Return three hidden layers on digits, each normalised before its GELU."""
    return Chain("normed_mlp", (Flatten("flatten"), *_normed((64, 64, 48, 32))), (1, 8, 8), 10)


def _normed(widths: tuple[int, ...]) -> Iterator[Layer]:
    for number, (n_in, n_out) in enumerate(pairwise(widths), 1):
        yield Linear(f"fc{number}", n_in, n_out)
        yield LayerNorm(f"norm{number}", n_out)
        yield Activation(f"gelu{number}", "gelu")
    yield Linear("head", widths[-1], 10)


def convnet() -> Chain:
    """Return two convolutions on digits, each pooled by its mean, and two dense layers."""
    layers = (
        Conv2d("conv1", 1, 8, 3, padding=1),
        Activation("relu1", "relu"),
        Pool("pool1", 2, "average"),
        Conv2d("conv2", 8, 16, 3, padding=1),
        Activation("relu2", "relu"),
        Pool("pool2", 2, "average"),
        Flatten("flatten"),
        Linear("fc1", 64, 48),
        Activation("relu3", "relu"),
        Linear("fc2", 48, 10),
    )
    return Chain("convnet", layers, (1, 8, 8), 10)


def rms_gpt(width: int = 24, hidden: int = 48, heads: int = 4) -> Chain:
    """Return a decoder of one block on sums, with bare norms and squared ReLU."""
    middle = Squared("block1.relu", "relu")
    layers: tuple[Layer, ...] = (
        Embedding("embed", WORDS, width),
        Position("position", TIME),
        *transformer_block("block1", width, hidden, heads, TIME, middle, True, RMSNorm),
        RMSNorm("norm", width),
        Linear("head", width, WORDS, bias=False),
    )
    return Chain("rms_gpt", layers, (TIME,), WORDS, True, TIME, loss="token_cross_entropy")
