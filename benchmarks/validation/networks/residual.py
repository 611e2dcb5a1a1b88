"""ResNet, Wide ResNet and ResNeXt, also with squeeze and excitation, on 224 x 224 images."""

from __future__ import annotations

from functools import partial
from math import prod

from benchmarks.validation.layers.convolutions import (
    Extent,
    classifier,
    convolution,
    normed,
    squeeze_excite,
)
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

BLOCKS = {
    18: (2, 2, 2, 2),
    26: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Residual blocks of each stage by depth (He et al., 2015)."""


def stem(step: Layers, batch: int, extent: Extent = (224, 224), width: int = 64) -> Extent:
    """Add the first convolution and pool; return the extent behind them."""
    out = normed(step, batch, 3, width, extent, 7, 2)
    pooled = tuple(-(-x // 2) for x in out)
    step.pool(batch * width * prod(out), batch * width * prod(pooled))
    return pooled


def norm(step: Layers, elements: float, frozen: bool, relu: bool = True, add: bool = False) -> None:
    """Add batch norm; a frozen one is a scale and an offset."""
    if not frozen:
        step.batch_norm(elements, relu, add)
        return
    step.elementwise(elements, (1, 1), 2)
    if add:
        step.residual(elements)
    if relu:
        step.relu(elements)


def block(
    step: Layers,
    batch: int,
    c_in: int,
    mid: int,
    c_out: int,
    extent: Extent,
    stride: int,
    groups: int,
    *,
    bottleneck: bool = True,
    squeeze: bool = False,
    frozen: bool = False,
    dilated: bool = False,
) -> Extent:
    """Add a residual block; return its extent. The shortcut has a convolution where it must."""
    out = tuple(-(-x // stride) for x in extent)
    inner, outer = batch * mid * prod(extent), batch * c_out * prod(out)
    if bottleneck:
        convolution(step, batch, c_in, mid, extent, 1)
        norm(step, inner, frozen)
        convolution(step, batch, mid, mid, extent, 3, stride, groups=groups, dilated=dilated)
        norm(step, batch * mid * prod(out), frozen)
        convolution(step, batch, mid, c_out, out, 1)
    else:
        convolution(step, batch, c_in, c_out, extent, 3, stride)
        norm(step, outer, frozen)
        convolution(step, batch, c_out, c_out, out, 3)
    if squeeze:
        squeeze_excite(step, batch, c_out, c_out // 16, outer)
    norm(step, outer, frozen, add=True)
    if stride > 1 or c_in != c_out:
        step.branch(batch * c_in * prod(extent))
        convolution(step, batch, c_in, c_out, extent, 1, stride)
        norm(step, outer, frozen, relu=False)
        step.branch(outer)
    return out


def stages(
    step: Layers,
    batch: int,
    depth: int,
    extent: Extent,
    *,
    groups: int = 1,
    width: int = 64,
    squeeze: bool = False,
    last_stride: int = 2,
    first_stages: int = 4,
    frozen: bool = False,
    dilated_stages: int = 0,
) -> tuple[int, Extent]:
    """Add the stages of a ResNet; return channels and extent behind them.

    The last `dilated_stages` have gaps in their windows in place of a stride.
    """
    bottleneck, c_in = depth not in (18, 34), 64
    each = partial(block, step, batch, groups=groups, bottleneck=bottleneck)
    add = partial(each, squeeze=squeeze, frozen=frozen)
    for i, count in enumerate(BLOCKS[depth][:first_stages]):
        planes = 64 * 2**i
        mid = planes * width // 64 * groups if bottleneck else planes
        c_out = planes * 4 if bottleneck else planes
        dilated = i >= first_stages - dilated_stages
        stride = 1 if i == 0 or dilated else last_stride if i == first_stages - 1 else 2
        for j in range(2):
            step.repeat(1 if j == 0 else count - 1)
            extent = add(c_in, mid, c_out, extent, stride if j == 0 else 1, dilated=dilated)
            c_in = c_out
    step.repeat(1)
    return c_in, extent


def _resnet(name: str, depth: int, groups: int = 1, width: int = 64, squeeze: bool = False) -> None:
    def build(step: Layers, batch: int) -> None:
        channels, extent = stages(
            step, batch, depth, stem(step, batch), groups=groups, width=width, squeeze=squeeze
        )
        step.pool(batch * channels * prod(extent), batch * channels)
        classifier(step, batch, (channels, 1000))

    NETWORKS[name] = Network(name, "resnet" if groups == 1 else "resnext", images(build))


NETWORKS: dict[str, Network] = {}
for _depth in BLOCKS:
    _resnet(f"resnet{_depth}", _depth)
for _name, _width in (("wide_resnet50_2", 128), ("wide_resnet101_2", 128)):
    _resnet(_name, 50 if "50" in _name else 101, 1, _width)
for _name, _depth, _groups, _width in (
    ("resnext50_32x4d", 50, 32, 4),
    ("resnext101_32x4d", 101, 32, 4),
    ("resnext101_32x8d", 101, 32, 8),
    ("resnext101_64x4d", 101, 64, 4),
):
    _resnet(_name, _depth, _groups, _width)
for _depth in (50, 101):
    _resnet(f"se_resnet{_depth}", _depth, squeeze=True)
    _resnet(f"se_resnext{_depth}_32x4d", _depth, 32, 4, squeeze=True)
