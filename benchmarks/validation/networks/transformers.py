"""Transformers: BERT, the translation Transformer and Transformer-XL."""

from __future__ import annotations

from functools import partial

from benchmarks.validation.layers.convolutions import update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network

BERT_ROWS = 30528
"""Rows of BERT's vocabulary, padded to a multiple of 8."""

ACCUMULATED = 16
"""Micro-batches of a step of BERT's pretraining with LAMB on one device; assumed."""


def attention(step: Layers, batch: int, rows: int, columns: int, width: int, heads: int) -> None:
    """Add attention of [rows] to [columns] positions: projections, scores, softmax and dropout.

    Heads are copied in and out. Score, mask and softmax are passes of their own, as before fused
    kernels of attention.
    """
    elements, scores = batch * rows * width, batch * heads * rows * columns
    for place, length in enumerate((rows, columns, columns)):
        if place:
            step.branch(batch * length * width)
        step.linear(batch * length, width, width)
        step.copy(batch * length * width)
    step.product(batch * heads, rows, columns, width // heads)
    step.elementwise(scores, (1, 1), 2)
    step.elementwise(scores, (1, 1), 0)
    step.softmax(scores)
    step.dropout(scores)
    step.product(batch * heads, rows, width // heads, columns)
    step.copy(elements)
    step.linear(batch * rows, width, width)
    step.dropout(elements)
    step.residual(elements)
    step.layer_norm(elements, width)


def feed_forward(step: Layers, tokens: int, width: int, inner: int, gelu: bool = True) -> None:
    """Add the two products of a block with their activation, dropout, residual and norm."""
    step.linear(tokens, width, inner)
    if gelu:
        step.gelu(tokens * inner)
    else:
        step.relu(tokens * inner)
        step.dropout(tokens * inner)
    step.linear(tokens, inner, width)
    step.dropout(tokens * width)
    step.residual(tokens * width)
    step.layer_norm(tokens * width, width)


def _bert(step: Layers, batch: int, length: int, size: str, task: str) -> None:
    width, heads, layers = (768, 12, 12) if size == "base" else (1024, 16, 24)
    tokens = batch * length
    step.embedding(tokens, width, BERT_ROWS)
    step.embedding(tokens, width, 512)
    step.elementwise(tokens * width, (3, 1), 0)
    step.layer_norm(tokens * width, width)
    step.dropout(tokens * width)
    step.repeat(layers)
    attention(step, batch, length, length, width, heads)
    feed_forward(step, tokens, width, 4 * width)
    step.repeat(1)
    if task == "squad":
        step.linear(tokens, width, 2)
        step.cross_entropy(tokens * 2)
    else:
        masked = batch * max(1, round(length * 0.15))
        step.linear(masked, width, width)
        step.gelu(masked * width)
        step.layer_norm(masked * width, width)
        step.linear(masked, width, BERT_ROWS, weight=False)
        step.cross_entropy(masked * BERT_ROWS)
    if task == "lamb":
        update(step, "lamb", ACCUMULATED)
    else:
        update(step, "adam")


def _translation(step: Layers, batch: int, length: int) -> None:
    """The big Transformer: 6 + 6 layers of 1024, 16 heads (Vaswani et al., 2017)."""
    width, rows, tokens = 1024, 33712, batch * length
    step.embedding(2 * tokens, width, rows)
    step.dropout(2 * tokens * width)
    step.repeat(18)
    attention(step, batch, length, length, width, 16)
    step.repeat(12)
    feed_forward(step, tokens, width, 4 * width, gelu=False)
    step.repeat(1)
    step.linear(tokens, width, rows, weight=False)
    step.cross_entropy(tokens * rows)
    update(step, "adam")


def _transformer_xl(step: Layers, batch: int, length: int, size: str) -> None:
    """Relative attention over a memory as long as the segment; adaptive softmax (Dai et al.)."""
    layers, width, heads, inner, rows = (
        (16, 512, 8, 2048, 267735) if size == "base" else (18, 1024, 16, 4096, 267735)
    )
    tokens, scores = batch * length, batch * heads * length * 2 * length
    if size == "base":
        step.embedding(tokens, width, rows)
    else:
        for start, end, part in ((0, 20000, width), (20000, 40000, 256), (40000, rows, 64)):
            step.embedding(tokens / 3, part, end - start)
    step.repeat(layers)
    attention(step, batch, length, 2 * length, width, heads)
    step.product(heads, batch * length, 2 * length, width // heads)
    step.copy(scores)
    step.elementwise(scores, (2, 1), 0)
    step.linear(2 * length, width, width, bias=False)
    feed_forward(step, tokens, width, inner, gelu=False)
    step.repeat(1)
    for share, part in ((1.0, 20000), (0.2, 20000), (0.1, 160000), (0.05, rows - 200000)):
        step.linear(max(8, round(tokens * share)), width, part, weight=False)
        step.cross_entropy(max(8, round(tokens * share)) * part)
    update(step, "lamb")


def _rows() -> dict[str, Network]:
    rows = [Network("transformer", "transformer", _translation, 28)]
    for size in ("base", "large"):
        for part, task, length in (("squad", "squad", 384), ("uncased", "adam", 512)):
            named = partial(_bert, size=size, task=task)
            rows.append(Network(f"bert-{size}-{part}", "bert", named, length))
        build = partial(_transformer_xl, size=size)
        length = 192 if size == "base" else 384
        name = f"transformer-xl-{size}"
        rows.append(Network(name, "transformer-xl", build, length, unfused_update=("torch",)))
    rows.append(Network("bert-base", "bert", partial(_bert, size="base", task="adam"), 128))
    rows.append(Network("bert-large", "bert", partial(_bert, size="large", task="lamb"), 128))
    return {row.name: row for row in rows}


NETWORKS: dict[str, Network] = _rows()
