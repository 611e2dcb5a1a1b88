"""Recurrent networks of translation and speech, and language models of LSTMs."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from benchmarks.validation.layers.convolutions import convolution, normed, update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network

FRAME_KERNELS = 100
"""Kernels of a frame of Tacotron 2, both ways, that hardly move anything; assumed."""


def _gnmt(step: Layers, batch: int, length: int) -> None:
    """GNMT v2: 4 encoder and 4 decoder layers of 1024, additive attention (Wu et al., 2016)."""
    h, rows, tokens = 1024, 32320, batch * length
    for _ in range(2):
        step.embedding(tokens, h, rows)
    step.repeat(2)  # both directions of the first layer
    step.recurrent(length, batch, h, h)
    step.repeat(1)
    step.recurrent(length, batch, 2 * h, h)
    step.recurrent(length, batch, h, h)
    step.recurrent(length, batch, h, h)
    step.repeat(4)
    step.dropout(tokens * h)
    step.elementwise(tokens * h, (2, 1), 0)
    step.repeat(3)
    step.recurrent(length, batch, 2 * h, h)
    step.dropout(tokens * 2 * h)
    step.copy(tokens * 2 * h)
    step.repeat(1)
    step.linear(tokens, h, h)
    step.linear(tokens, h, h)
    scores = tokens * length * h
    step.elementwise(scores, (1, 1), 2)
    step.elementwise(scores)
    step.move(scores, 0)
    step.move(scores, scores)
    step.softmax(tokens * length)
    step.product(batch, length, h, length)
    step.linear(tokens, h, rows)
    step.cross_entropy(tokens * rows)
    update(step, "adam")


def _convolutions_1d(
    step: Layers, batch: int, length: int, widths: tuple[int, ...], window: int
) -> None:
    for c_in, c_out in pairwise(widths):
        normed(step, batch, c_in, c_out, (length,), window)
        step.dropout(batch * c_out * length)


def _tacotron2(step: Layers, batch: int, length: int) -> None:
    """Encoder over 150 characters; decoder of two LSTMs, `length` frames (Shen et al., 2017)."""
    text, frames = 150, length
    step.embedding(batch * text, 512, 148)
    _convolutions_1d(step, batch, text, (512, 512, 512, 512), 5)
    step.repeat(2)
    step.recurrent(text, batch, 512, 256)
    step.repeat(1)
    step.linear(batch * frames, 80, 256)
    step.linear(batch * frames, 256, 256)
    step.recurrent(frames, batch, 256 + 512, 1024)
    step.recurrent(frames, batch, 1024 + 512, 1024)
    step.repeat(frames)  # attention over the text, frame by frame
    step.linear(batch, 1024, 128, bias=False, weight=False)
    step.product(1, batch * text, 32, 62)
    step.linear(batch * text, 32, 128, bias=False, weight=False)
    for _ in range(3):
        step.elementwise(batch * text * 128)
    step.softmax(batch * text)
    step.product(batch, 1, 512, text)
    step.dropout(batch * 1024)
    step.dropout(batch * 1024)
    step.copy(batch * 1536)
    step.copy(batch * 1536)
    step.linear(batch, 1536, 81, bias=False, weight=False)
    step.move(batch, batch, count=FRAME_KERNELS)
    step.repeat(1)
    step.weight(1024 * 128 + 32 * 62 + 32 * 128 + 1536 * 81, 4)
    _convolutions_1d(step, batch, frames, (80, 512, 512, 512, 512, 80), 5)
    update(step, "adam")


def _waveglow(step: Layers, batch: int, length: int) -> None:
    """12 flows of 8 gated dilated layers of 512 channels, groups of 8 (Prenger et al., 2018)."""
    groups = length // 8
    channels = 512
    step.repeat(12)
    convolution(step, batch, 8, 8, (groups,), 1)
    convolution(step, batch, 4, channels, (groups,), 1, bias=True)
    step.repeat(12 * 8)
    convolution(step, batch, channels, 2 * channels, (groups,), 3, bias=True, dilated=True)
    convolution(step, batch, 640, 2 * channels, (groups,), 1, bias=True)
    step.elementwise(batch * 2 * channels * groups, (2, 0.5), 3.5)
    convolution(step, batch, channels, 2 * channels, (groups,), 1, bias=True)
    step.residual(batch * channels * groups)
    step.residual(batch * channels * groups)
    step.repeat(12)
    convolution(step, batch, channels, 8, (groups,), 1, bias=True)
    step.elementwise(batch * 8 * groups)
    step.elementwise(batch * 8 * groups)
    step.copy(batch * 8 * groups)
    update(step, "adam")


def _jasper(step: Layers, batch: int, length: int) -> None:
    """Jasper 10 x 5: one-dimensional convolutions of 11 to 29 taps (Li et al., 2019)."""
    frames = length // 2
    convolution(step, batch, 64, 256, (length,), 11, 2)
    c_in = 256
    widths = ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25))
    for c_out, window in widths:
        for _ in range(2):
            for _ in range(5):
                normed(step, batch, c_in, c_out, (frames,), window)
                step.dropout(batch * c_out * frames)
                c_in = c_out
            normed(step, batch, c_in, c_out, (frames,), 1, add=True)
    convolution(step, batch, 768, 896, (frames,), 29)
    convolution(step, batch, 896, 1024, (frames,), 1)
    convolution(step, batch, 1024, 29, (frames,), 1, bias=True)
    step.cross_entropy(batch * 29 * frames)
    update(step, "adam")


def _language_model(
    step: Layers, batch: int, length: int, widths: tuple[int, ...], rows: int, tied: bool
) -> None:
    """LSTMs between an embedding and a product over the vocabulary."""
    tokens = batch * length
    step.embedding(tokens, widths[0], rows)
    step.dropout(tokens * widths[0])
    for n_in, hidden in pairwise(widths):
        step.recurrent(length, batch, n_in, hidden)
        step.dropout(tokens * hidden)
    step.linear(tokens, widths[-1], rows, weight=not tied)
    step.cross_entropy(tokens * rows)
    update(step, "momentum")


LANGUAGE_MODELS = {
    "lstm-ptb-large": ((1500, 1500, 1500), False, 35),
    "awd-lstm-ptb": ((400, 1150, 1150, 400), True, 70),
}
"""Widths, whether the last product is by the embedding, and length, over the 10,000 words of the
Penn Treebank (Zaremba et al., 2014; Merity et al., 2017)."""

NETWORKS: dict[str, Network] = {
    "gnmt": Network("gnmt", "gnmt", _gnmt, 28, longest=50),
    "tacotron2": Network("tacotron2", "tacotron2", _tacotron2, 600),
    "waveglow": Network("waveglow", "waveglow", _waveglow, 8000),
    "jasper": Network("jasper", "jasper", _jasper, 1600),
} | {
    name: Network(
        name,
        "lstm",
        partial(_language_model, widths=widths, rows=10000, tied=tied),
        length,
    )
    for name, (widths, tied, length) in LANGUAGE_MODELS.items()
}
