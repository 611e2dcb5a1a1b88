"""Encoders in the manner of BERT: cased BERT, RoBERTa, DistilBERT and ELECTRA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.validation.layers.convolutions import update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network
from benchmarks.validation.networks.transformers import attention, feed_forward


@dataclass(frozen=True)
class Encoder:
    """Width, blocks, heads, rows of the vocabulary and positions.

    `embedded`: the width of embeddings where it is another. `masked`: the share of tokens that the
    head finds again, 0 where it says of each whether it was replaced.
    """

    width: int
    blocks: int
    heads: int
    rows: int
    positions: int = 512
    embedded: int = 0
    masked: float = 0.15


ENCODERS = {
    "bert-base-cased": Encoder(768, 12, 12, 28996),
    "bert-large-cased": Encoder(1024, 24, 16, 28996),
    "roberta-base": Encoder(768, 12, 12, 50265, 514),
    "roberta-large": Encoder(1024, 24, 16, 50265, 514),
    "xlm-roberta-base": Encoder(768, 12, 12, 250002, 514),
    "distilbert-base": Encoder(768, 6, 12, 30522),
    "distilroberta-base": Encoder(768, 6, 12, 50265, 514),
    "electra-small": Encoder(256, 12, 4, 30522, embedded=128, masked=0),
    "electra-base": Encoder(768, 12, 12, 30522, masked=0),
    "electra-large": Encoder(1024, 24, 16, 30522, masked=0),
}
"""Devlin et al., 2018; Liu et al., 2019; Conneau et al., 2019; Sanh et al., 2019; Clark et al.,
2020 (the discriminator alone), as configured in transformers."""


def _encoder(step: Layers, batch: int, length: int, e: Encoder) -> None:
    tokens, embedded = batch * length, e.embedded or e.width
    step.embedding(tokens, embedded, e.rows)
    step.embedding(tokens, embedded, e.positions)
    step.elementwise(tokens * embedded, (3, 1), 0)
    step.layer_norm(tokens * embedded, embedded)
    step.dropout(tokens * embedded)
    if embedded != e.width:
        step.linear(tokens, embedded, e.width)
    step.repeat(e.blocks)
    attention(step, batch, length, length, e.width, e.heads)
    feed_forward(step, tokens, e.width, 4 * e.width)
    step.repeat(1)
    masked = batch * max(1, round(length * e.masked)) if e.masked else tokens
    step.linear(masked, e.width, e.width)
    step.gelu(masked * e.width)
    outputs = e.rows if e.masked else 1
    if e.masked:
        step.layer_norm(masked * e.width, e.width)
        step.parameter(e.rows)
    step.linear(masked, e.width, outputs, bias=False, weight=not e.masked)
    step.cross_entropy(masked * outputs)
    update(step, "adam")


NETWORKS: dict[str, Network] = {
    name: Network(
        name,
        name.split("-")[0],
        partial(_encoder, e=encoder),
        128,
        compiled=("tensorflow",) if name.startswith("electra") else (),
    )
    for name, encoder in ENCODERS.items()
}
