"""Encoders with decoders: the base Transformer, T5 and BART; lengths are equal on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.validation.layers.convolutions import update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network
from benchmarks.validation.networks.transformers import attention, feed_forward


@dataclass(frozen=True)
class Translator:
    """Width, blocks on each side, heads, width inside the feed-forward, rows of the vocabulary.

    `positions` are those that are learned, on each side.
    """

    width: int
    blocks: int
    heads: int
    inner: int
    rows: int
    positions: int = 0
    gelu: bool = False


TRANSLATORS = {
    "transformer-base": Translator(512, 6, 8, 2048, 37000),
    "t5-small": Translator(512, 6, 8, 2048, 32128),
    "t5-base": Translator(768, 12, 12, 3072, 32128),
    "t5-large": Translator(1024, 24, 16, 4096, 32128),
    "bart-base": Translator(768, 6, 12, 3072, 50265, 1026, gelu=True),
    "bart-large": Translator(1024, 12, 16, 4096, 50265, 1026, gelu=True),
}
"""Vaswani et al., 2017; Raffel et al., 2019; Lewis et al., 2019."""


def _translator(step: Layers, batch: int, length: int, t: Translator) -> None:
    tokens = batch * length
    step.embedding(2 * tokens, t.width, t.rows)
    if t.positions:
        step.embedding(2 * tokens, t.width, 2 * t.positions)
        step.layer_norm(2 * tokens * t.width, t.width)
    step.dropout(2 * tokens * t.width)
    step.repeat(3 * t.blocks)  # of the encoder, of the decoder, and of the one to the other
    attention(step, batch, length, length, t.width, t.heads)
    step.repeat(2 * t.blocks)
    feed_forward(step, tokens, t.width, t.inner, gelu=t.gelu)
    step.repeat(1)
    step.linear(tokens, t.width, t.rows, bias=False, weight=False)
    step.cross_entropy(tokens * t.rows)
    update(step, "adam")


NETWORKS: dict[str, Network] = {
    name: Network(name, name.split("-")[0], partial(_translator, t=translator), 128)
    for name, translator in TRANSLATORS.items()
}
