"""Speech networks without recurrence: QuartzNet over frames, wav2vec 2.0 over samples, Whisper."""

from __future__ import annotations

from functools import partial

from benchmarks.validation.layers.convolutions import convolution, normed, update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network
from benchmarks.validation.networks.transformers import attention, feed_forward

QUARTZNET = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
"""Width and window of the blocks, each three times (Kriman et al., 2019)."""

WAV2VEC = {"wav2vec2-base": (768, 12, 12), "wav2vec2-large": (1024, 24, 16)}
"""Width, blocks and heads (Baevski et al., 2020)."""

WHISPER = {
    "whisper-tiny": (384, 4),
    "whisper-base": (512, 6),
    "whisper-small": (768, 12),
    "whisper-medium": (1024, 24),
    "whisper-large": (1280, 32),
}
"""Width and blocks on each side (Radford et al., 2022)."""

SAMPLED = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
"""Windows and strides of the convolutions that turn samples into frames."""


def _separable(
    step: Layers, batch: int, c_in: int, c_out: int, frames: int, window: int, stride: int = 1
) -> int:
    """Add a depthwise convolution and one of 1 with its norm; return the frames behind."""
    extent = convolution(step, batch, c_in, c_in, (frames,), window, stride, groups=c_in)
    normed(step, batch, c_in, c_out, extent, 1)
    step.dropout(batch * c_out * extent[0])
    return extent[0]


def _quartznet(step: Layers, batch: int, length: int) -> None:
    """QuartzNet 15 x 5 of 64 features a frame."""
    frames = _separable(step, batch, 64, 256, length, 33, 2)
    c_in = 256
    for c_out, window in QUARTZNET:
        for _ in range(3):
            start = c_in
            for _ in range(5):
                _separable(step, batch, c_in, c_out, frames, window)
                c_in = c_out
            step.branch(batch * start * frames)
            normed(step, batch, start, c_out, (frames,), 1, add=True)
    _separable(step, batch, 512, 512, frames, 87)
    normed(step, batch, 512, 1024, (frames,), 1)
    convolution(step, batch, 1024, 29, (frames,), 1, bias=True)
    step.cross_entropy(batch * 29 * frames)
    update(step, "adam")


def _wav2vec(step: Layers, batch: int, length: int, name: str) -> None:
    """Fine-tuning of all layers for 32 characters; length in samples."""
    width, blocks, heads = WAV2VEC[name]
    frames, c_in = length, 1
    for window, stride in SAMPLED:
        (frames,) = convolution(step, batch, c_in, 512, (frames,), window, stride, first=c_in == 1)
        if c_in == 1:
            step.instance_norm(batch * 512 * frames)
        step.gelu(batch * 512 * frames)
        c_in = 512
    tokens = batch * frames
    step.copy(tokens * 512)
    step.layer_norm(tokens * 512, 512)
    step.linear(tokens, 512, width)
    step.dropout(tokens * width)
    convolution(step, batch, width, width, (frames,), 128, groups=16, bias=True)
    step.gelu(tokens * width)
    step.residual(tokens * width)
    step.layer_norm(tokens * width, width)
    step.repeat(blocks)
    attention(step, batch, frames, frames, width, heads)
    feed_forward(step, tokens, width, 4 * width)
    step.repeat(1)
    step.linear(tokens, width, 32)
    step.cross_entropy(tokens * 32)
    update(step, "adam")


def _whisper(step: Layers, batch: int, length: int, name: str) -> None:
    """An encoder of 30 seconds, 3000 frames of 80 features; `length` tokens are decoded."""
    width, blocks = WHISPER[name]
    heads, places, tokens = width // 64, 1500, batch * length
    convolution(step, batch, 80, width, (3000,), 3, first=True, bias=True)
    step.gelu(batch * 3000 * width)
    convolution(step, batch, width, width, (3000,), 3, 2, bias=True)
    step.gelu(batch * places * width)
    step.copy(batch * places * width)
    step.elementwise(batch * places * width, (2, 1), 0)
    step.parameter(places * width)
    step.embedding(tokens, width, 51865)
    step.embedding(tokens, width, 448)
    step.repeat(blocks)
    attention(step, batch, places, places, width, heads)
    feed_forward(step, batch * places, width, 4 * width)
    attention(step, batch, length, length, width, heads)
    attention(step, batch, length, places, width, heads)
    feed_forward(step, tokens, width, 4 * width)
    step.repeat(1)
    step.layer_norm((batch * places + tokens) * width, width)
    step.linear(tokens, width, 51865, bias=False, weight=False)
    step.cross_entropy(tokens * 51865)
    update(step, "adam")


NETWORKS: dict[str, Network] = (
    {"quartznet15x5": Network("quartznet15x5", "quartznet", _quartznet, 1600)}
    | {name: Network(name, "wav2vec2", partial(_wav2vec, name=name), 160000) for name in WAV2VEC}
    | {name: Network(name, "whisper", partial(_whisper, name=name), 128) for name in WHISPER}
)
