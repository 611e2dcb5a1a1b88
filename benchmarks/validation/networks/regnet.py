"""RegNets on 224 x 224 images: residual blocks of grouped convolutions, widths by a rule."""

from __future__ import annotations

from functools import partial
from math import prod

from benchmarks.validation.layers.convolutions import Extent, classifier, normed, squeeze_excite
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

STAGES: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "x_400mf": ((32, 64, 160, 400), (1, 2, 7, 12), 16),
    "x_800mf": ((64, 128, 288, 672), (1, 3, 7, 5), 16),
    "x_1_6gf": ((72, 168, 408, 912), (2, 4, 10, 2), 24),
    "x_3_2gf": ((96, 192, 432, 1008), (2, 6, 15, 2), 48),
    "x_8gf": ((80, 240, 720, 1920), (2, 5, 15, 1), 120),
    "x_16gf": ((256, 512, 896, 2048), (2, 6, 13, 1), 128),
    "x_32gf": ((336, 672, 1344, 2520), (2, 7, 13, 1), 168),
    "y_400mf": ((48, 104, 208, 440), (1, 3, 6, 6), 8),
    "y_800mf": ((64, 144, 320, 784), (1, 3, 8, 2), 16),
    "y_1_6gf": ((48, 120, 336, 888), (2, 6, 17, 2), 24),
    "y_3_2gf": ((72, 216, 576, 1512), (2, 5, 13, 1), 24),
    "y_8gf": ((224, 448, 896, 2016), (2, 4, 10, 1), 56),
    "y_16gf": ((224, 448, 1232, 3024), (2, 4, 11, 1), 112),
    "y_32gf": ((232, 696, 1392, 3712), (2, 5, 12, 1), 232),
}
"""Widths, blocks and group width of the stages (Radosavovic et al., 2020), as in torchvision."""


def _block(
    step: Layers,
    batch: int,
    c_in: int,
    c_out: int,
    extent: Extent,
    stride: int,
    group: int,
    squeeze: int,
) -> Extent:
    """Add a block of grouped convolutions, `group` channels each; return its extent."""
    normed(step, batch, c_in, c_out, extent, 1)
    groups = c_out // min(group, c_out)
    out = normed(step, batch, c_out, c_out, extent, 3, stride, groups)
    elements = batch * c_out * prod(out)
    if squeeze:
        squeeze_excite(step, batch, c_out, squeeze, elements)
    normed(step, batch, c_out, c_out, out, 1, add=True)
    if stride > 1:
        step.branch(batch * c_in * prod(extent))
        normed(step, batch, c_in, c_out, extent, 1, stride, relu=False)
        step.branch(elements)
    return out


def _regnet(step: Layers, batch: int, name: str) -> None:
    """The y of them squeeze to a quarter of a block's input."""
    widths, depths, group = STAGES[name]
    c_in, extent = 32, normed(step, batch, 3, 32, (224, 224), 3, 2)
    for c_out, blocks in zip(widths, depths, strict=True):
        for i in range(blocks):
            squeeze = round(c_in / 4) if name[0] == "y" else 0
            extent = _block(step, batch, c_in, c_out, extent, 2 if i == 0 else 1, group, squeeze)
            c_in = c_out
    step.pool(batch * c_in * prod(extent), batch * c_in)
    classifier(step, batch, (c_in, 1000))


NETWORKS: dict[str, Network] = {
    f"regnet_{name}": Network(f"regnet_{name}", "regnet", images(partial(_regnet, name=name)))
    for name in STAGES
}
