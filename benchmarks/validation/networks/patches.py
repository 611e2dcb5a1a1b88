"""Image networks that work on patches: ViT, DeiT, Swin and ConvNeXt, 224 x 224 images."""

from __future__ import annotations

from functools import partial
from math import prod

from benchmarks.validation.layers.convolutions import Extent, convolution, update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images
from benchmarks.validation.networks.transformers import attention, feed_forward

SIDE = 224

VIT = {
    "vit_b_16": (768, 12, 12, 16),
    "vit_b_32": (768, 12, 12, 32),
    "vit_l_16": (1024, 24, 16, 16),
    "vit_l_32": (1024, 24, 16, 32),
    "vit_h_14": (1280, 32, 16, 14),
    "deit_tiny_patch16_224": (192, 12, 3, 16),
    "deit_small_patch16_224": (384, 12, 6, 16),
}
"""Width, blocks, heads and patch (Dosovitskiy et al., 2020; Touvron et al., 2020)."""

SWIN = {
    "swin_t": (96, (2, 2, 6, 2), 3),
    "swin_s": (96, (2, 2, 18, 2), 3),
    "swin_b": (128, (2, 2, 18, 2), 4),
    "swin_l": (192, (2, 2, 18, 2), 6),
}
"""Width, blocks of each stage and heads of the first (Liu et al., 2021)."""

WINDOW = 7
"""Side of Swin's windows."""

CONVNEXT = {
    "convnext_tiny": (96, (3, 3, 9, 3)),
    "convnext_small": (96, (3, 3, 27, 3)),
    "convnext_base": (128, (3, 3, 27, 3)),
    "convnext_large": (192, (3, 3, 27, 3)),
}
"""Width and blocks of each stage; both double from one to the next (Liu et al., 2022)."""


def _classes(step: Layers, batch: int, width: int) -> None:
    step.linear(batch, width, 1000)
    step.cross_entropy(batch * 1000)
    update(step, "adam")


def _vit(step: Layers, batch: int, name: str) -> None:
    width, blocks, heads, patch = VIT[name]
    positions = (SIDE // patch) ** 2 + 1
    convolution(step, batch, 3, width, (SIDE, SIDE), patch, patch, first=True, bias=True)
    step.repeat(blocks)
    attention(step, batch, positions, positions, width, heads)
    feed_forward(step, batch * positions, width, 4 * width)
    step.repeat(1)
    _classes(step, batch, width)


def _swin(step: Layers, batch: int, name: str) -> None:
    """Attention within windows; tokens are copied into them and back, shifted."""
    width, depths, heads = SWIN[name]
    side = SIDE // 4
    convolution(step, batch, 3, width, (SIDE, SIDE), 4, 4, first=True, bias=True)
    step.layer_norm(batch * side**2 * width, width)
    for i, blocks in enumerate(depths):
        if i:
            side //= 2
            step.copy(batch * side**2 * 4 * width)
            step.layer_norm(batch * side**2 * 4 * width, 4 * width)
            step.linear(batch * side**2, 4 * width, 2 * width, bias=False)
            width, heads = 2 * width, 2 * heads
        tokens = batch * side**2
        step.repeat(blocks)
        step.parameter((2 * WINDOW - 1) ** 2 * heads)
        step.copy(tokens * width)
        attention(step, tokens // WINDOW**2, WINDOW**2, WINDOW**2, width, heads)
        step.copy(tokens * width)
        feed_forward(step, tokens, width, 4 * width)
        step.repeat(1)
    step.layer_norm(batch * side**2 * width, width)
    _classes(step, batch, width)


def _convnext(step: Layers, batch: int, name: str) -> None:
    """A depthwise convolution, and products over channels that are last for them alone."""
    width, depths = CONVNEXT[name]
    extent: Extent = convolution(step, batch, 3, width, (SIDE, SIDE), 4, 4, first=True, bias=True)
    step.layer_norm(batch * width * prod(extent), width)
    for i, blocks in enumerate(depths):
        if i:
            step.layer_norm(batch * width * prod(extent), width)
            extent = convolution(step, batch, width, 2 * width, extent, 2, 2, bias=True)
            width *= 2
        tokens = batch * prod(extent)
        step.repeat(blocks)
        convolution(step, batch, width, width, extent, 7, groups=width, bias=True)
        step.copy(tokens * width)
        step.layer_norm(tokens * width, width)
        step.linear(tokens, width, 4 * width)
        step.gelu(tokens * 4 * width)
        step.linear(tokens, 4 * width, width)
        step.copy(tokens * width)
        step.elementwise(tokens * width)
        step.parameter(width)
        step.residual(tokens * width)
        step.repeat(1)
    step.pool(tokens * width, batch * width)
    step.layer_norm(batch * width, width)
    _classes(step, batch, width)


NETWORKS: dict[str, Network] = {
    name: Network(name, family, images(partial(build, name=name)))
    for family, names, build in (
        ("vit", VIT, _vit),
        ("swin", SWIN, _swin),
        ("convnext", CONVNEXT, _convnext),
    )
    for name in names
}
