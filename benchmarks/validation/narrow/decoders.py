"""Decoders as large language models have them: dense blocks by their sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from benchmarks.validation.narrow.layers import Collective, Layers
from policysearch.cost.gemm import Extents
from policysearch.formats import format_named
from policysearch.objective.published.networks import spelled_alike


@dataclass(frozen=True)
class Decoder:
    """Width, blocks, heads, heads of keys, width inside the feed-forward, rows of the vocabulary.

    `gated`: the feed-forward multiplies two branches (SwiGLU), else it has one. Each token passes
    `active` feed-forwards of its block's experts, a device one of them with the tokens of many.
    """

    width: int
    blocks: int
    heads: int
    key_heads: int
    inner: int
    rows: int
    gated: bool = True
    active: int = 1


DECODERS: dict[str, Decoder] = {
    "qwen2.5-0.5b": Decoder(896, 24, 14, 2, 4864, 151936),
    "qwen2.5-1.5b": Decoder(1536, 28, 12, 2, 8960, 151936),
    "qwen2.5-3b": Decoder(2048, 36, 16, 2, 11008, 151936),
    "qwen2.5-7b": Decoder(3584, 28, 28, 4, 18944, 152064),
    "qwen2.5-14b": Decoder(5120, 48, 40, 8, 13824, 152064),
    "qwen2.5-32b": Decoder(5120, 64, 40, 8, 27648, 152064),
    "qwen3 8b": Decoder(4096, 36, 32, 8, 12288, 151936),
    "llama 2 7b": Decoder(4096, 32, 32, 32, 11008, 32000),
    "llama 2 13b": Decoder(5120, 40, 40, 40, 13824, 32000),
    "llama 3.2 1b": Decoder(2048, 16, 32, 8, 8192, 128256),
    "llama 3.2 3b": Decoder(3072, 28, 24, 8, 8192, 128256),
    "tinyllama-1.1b": Decoder(2048, 22, 32, 4, 5632, 32000),
    "mistral-7b": Decoder(4096, 32, 32, 8, 14336, 32000),
    "llama3 8b": Decoder(4096, 32, 32, 8, 14336, 128256),
    "llama3 70b": Decoder(8192, 80, 64, 8, 28672, 128256),
    "llama3 405b": Decoder(16384, 126, 128, 8, 53248, 128256),
    "nemotron-4 340b": Decoder(18432, 96, 96, 8, 73728, 256000, gated=False),
    "gpt2-large": Decoder(1280, 36, 20, 20, 5120, 50257, gated=False),
    "gpt2-xl": Decoder(1600, 48, 25, 25, 6400, 50257, gated=False),
    "mpt-1b": Decoder(2048, 24, 16, 16, 8192, 50368, gated=False),
    "mpt-3b": Decoder(2560, 32, 20, 20, 10240, 50368, gated=False),
    "pythia-160m": Decoder(768, 12, 12, 12, 3072, 50304, gated=False),
    "pythia-410m": Decoder(1024, 24, 16, 16, 4096, 50304, gated=False),
    "pythia-1b": Decoder(2048, 16, 8, 8, 8192, 50304, gated=False),
    "pythia-1.4b": Decoder(2048, 24, 16, 16, 8192, 50304, gated=False),
    "pythia-2.8b": Decoder(2560, 32, 32, 32, 10240, 50304, gated=False),
    "gpt 5b": Decoder(4096, 24, 32, 32, 16384, 50304, gated=False),
    "gpt 175b": Decoder(12288, 96, 96, 96, 49152, 50304, gated=False),
    "nanochat d26": Decoder(1664, 26, 13, 13, 6656, 65536, gated=False),
    "nanochat d12": Decoder(768, 12, 6, 6, 3072, 65536, gated=False),
    "qwen3-30b-a3b": Decoder(2048, 48, 16, 2, 768, 151936, active=8),
    "qwen3-235b-a22b": Decoder(4096, 94, 32, 2, 1536, 151936, active=8),
    "deepseekv3": Decoder(7168, 61, 56, 56, 2048, 129280, active=9),
    "grok1 314b": Decoder(6144, 64, 48, 8, 32768, 131072, active=2),
    "mixtral 8x7b": Decoder(4096, 32, 32, 8, 14336, 32000, active=2),
    "gpt-oss 120b": Decoder(2880, 36, 45, 6, 2880, 201088, active=4),
}
"""From the models' published configurations."""


def decoder_named(name: str) -> Decoder | None:
    """Return a decoder, however its name is spelled; None where there is none."""
    name = name.replace("_", "-")
    spelled = {spelled_alike(key): row for key, row in DECODERS.items()}
    return spelled.get(spelled_alike(name))


EAGER_CHAIN = 3
"""Kernels of a norm each way where each op is one; assumed."""


def block(step: Layers, batch: int, length: int, d: Decoder, shards: int = 1) -> None:
    """Add a block whose products are split over `shards` devices (tensor parallel).

    Attention is one fused kernel each way, in the activations' format, on half the positions.
    """
    tokens, wide, head = batch * length, batch * length * d.width, d.width // d.heads
    keys = d.key_heads * head
    _norm(step, wide)
    step.linear(tokens, d.width, (d.width + 2 * keys) // shards, bias=False, gathered=shards)
    step.move((wide + tokens * keys) / shards, (wide + tokens * keys) / shards)
    step.move((wide + tokens * keys) / shards, (wide + tokens * keys) / shards)
    flash_attention(step, batch * d.heads // shards, length, head)
    step.linear(tokens, d.width // shards, d.width, bias=False)
    _exchanges(step, wide, shards)
    step.residual(wide)
    _norm(step, wide)
    branches, passed = (2 if d.gated else 1), tokens * d.active
    step.linear(passed, d.width, branches * d.inner // shards, bias=False, gathered=shards)
    inner = passed * d.inner / shards
    step.move(branches * inner, inner)
    step.move((branches + 1) * inner, branches * inner)
    step.linear(passed, d.inner // shards, d.width, bias=False)
    if d.active > 1:  # tokens are sent to their experts and back, both ways
        step.move(2 * passed * d.width, 2 * passed * d.width, count=2)
    _exchanges(step, wide, shards)
    step.residual(wide)


def _exchanges(step: Layers, elements: float, shards: int) -> None:
    """Add what devices exchange around two products, one split by columns and one by rows.

    The input of both is gathered and the parts of their result are summed, and backward the same of
    the gradients (sequence parallelism: Korthikanti et al., 2022). For the gradient of the weight
    the input is gathered again, behind that of the input. Where tensors are gathered before they
    are quantised, products wait for both gathers (github:pytorch/torchtitan issue 1207), and none
    is cut in parts that overlap them (github:pytorch/pytorch issue 149990).
    """
    if shards == 1:
        return
    scaling, bytes = step.precision.scaling, elements * step.precision.bytes
    wide = scaling is not None and not scaling.gathers_narrow
    narrow = bytes if scaling is None or wide else elements * format_named(scaling.format).bits / 8
    step.collectives += [
        Collective("all_gather", narrow, (3 if wide else 2) * step.times, overlaps=not wide),
        Collective("reduce_scatter", bytes, 2 * step.times),
    ]


def _norm(step: Layers, elements: float) -> None:
    """Add a norm of the rows: one kernel each way, or a chain of EAGER_CHAIN op by op."""
    count = 1 if step.stack.elementwise_fusion else EAGER_CHAIN
    step.move(elements, elements, count=count)
    step.move(3 * elements, elements, count=count)


def flash_attention(step: Layers, heads: int, length: int, head: int) -> None:
    """Add causal attention in one kernel each way: two products forward, five backward."""
    e = Extents(heads, length, length, head, (head,))
    times = step.times
    step.times = times / 2
    for _ in range(7):
        step.single_product(e, 4 * heads * length * head / 3)
    step.times = times


def decoder(
    step: Layers,
    batch: int,
    length: int,
    d: Decoder,
    shards: int = 1,
    recomputed: Collection[str] = (),
    stages: int = 1,
    wide: float = 0.0,
) -> None:
    """Add all blocks and the last product, which stays in the activations' format.

    Of `stages` of a pipeline a device has its share.
    `recomputed`: what backward runs again instead of keeping it, of "norm" and "swiglu".
    `wide`: the share of the blocks whose products stay in the activations' format too.
    """
    tokens, scaled = batch * length, step.precision
    for precision, share in ((scaled, 1 - wide), (replace(scaled, scaling=None), wide)):
        if not share:
            continue
        step.precision = precision
        step.repeat(d.blocks * share / stages)
        block(step, batch, length, d, shards)
        if "norm" in recomputed:
            step.move(tokens * d.width, tokens * d.width, count=2)
        if "swiglu" in recomputed:
            branches, inner = (2 if d.gated else 1), tokens * d.inner / shards
            step.move(branches * inner, inner)
    step.precision = scaled
    step.repeat(1 / stages)
    step.product(1, tokens, d.rows // shards, d.width)
    step.cross_entropy(tokens * d.rows / shards)
