"""Decoders of text in 16 bits over float32: GPT-2 and OPT op by op, newer ones as in `decoders`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.validation.layers.convolutions import update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.decoders import DECODERS, Decoder, decoder
from benchmarks.validation.networks.network import Network
from benchmarks.validation.networks.transformers import attention, feed_forward


@dataclass(frozen=True)
class Causal:
    """Width, blocks, heads, rows of the vocabulary and learned positions."""

    width: int
    blocks: int
    heads: int
    rows: int = 50257
    positions: int = 1024
    gelu: bool = True


CAUSAL = {
    "gpt2": Causal(768, 12, 12),
    "distilgpt2": Causal(768, 6, 12),
    "gpt2-medium": Causal(1024, 24, 16),
    "gpt2-large": Causal(1280, 36, 20),
    "gpt2-xl": Causal(1600, 48, 25),
    "opt-125m": Causal(768, 12, 12, 50272, 2050, gelu=False),
    "opt-1.3b": Causal(2048, 24, 32, 50272, 2050, gelu=False),
    "opt-2.7b": Causal(2560, 32, 32, 50272, 2050, gelu=False),
    "opt-6.7b": Causal(4096, 32, 32, 50272, 2050, gelu=False),
}
"""Radford et al., 2019; Zhang et al., 2022, as configured in transformers."""

TIED = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "llama 3.2 1b", "llama 3.2 3b", "mpt")
"""How the names of decoders start whose last product is by the embedding."""


def _causal(step: Layers, batch: int, length: int, c: Causal) -> None:
    """Attention of all positions, those that come later are masked."""
    tokens = batch * length
    step.embedding(tokens, c.width, c.rows)
    step.embedding(tokens, c.width, c.positions)
    step.elementwise(tokens * c.width, (2, 1), 0)
    step.dropout(tokens * c.width)
    step.repeat(c.blocks)
    attention(step, batch, length, length, c.width, c.heads)
    feed_forward(step, tokens, c.width, 4 * c.width, gelu=c.gelu)
    step.repeat(1)
    step.layer_norm(tokens * c.width, c.width)
    step.linear(tokens, c.width, c.rows, bias=False, weight=False)
    step.cross_entropy(tokens * c.rows)
    update(step, "adam")


def _decoder(step: Layers, batch: int, length: int, d: Decoder, tied: bool) -> None:
    step.embedding(batch * length, d.width, d.rows)
    decoder(step, batch, length, d)
    if not tied:
        step.weight(d.rows * d.width)
    update(step, "adam")


NETWORKS: dict[str, Network] = {
    name: Network(name, "gpt", partial(_causal, c=causal), 1024) for name, causal in CAUSAL.items()
} | {
    name: Network(name, "decoder", partial(_decoder, d=sizes, tied=name.startswith(TIED)), 2048)
    for name, sizes in DECODERS.items()
    if not name.startswith(("gpt", "nanochat"))  # whose embeddings are not published
}
