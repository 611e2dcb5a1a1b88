"""Image networks without residual blocks: AlexNet, VGG, SqueezeNet, GoogLeNet and DenseNet."""

from __future__ import annotations

from functools import partial
from math import prod

from benchmarks.validation.layers.convolutions import Extent, classifier, convolution, normed
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions before each pool (Simonyan and Zisserman, 2014)."""

DENSENET = {
    121: (64, 32, (6, 12, 24, 16)),
    161: (96, 48, (6, 12, 36, 24)),
    169: (64, 32, (6, 12, 32, 32)),
    201: (64, 32, (6, 12, 48, 32)),
}
"""First width, growth and layers of each block (Huang et al., 2016)."""

INCEPTION = (
    (28, 192, (64, 96, 128, 16, 32, 32)),
    (28, 256, (128, 128, 192, 32, 96, 64)),
    (14, 480, (192, 96, 208, 16, 48, 64)),
    (14, 512, (160, 112, 224, 24, 64, 64)),
    (14, 512, (128, 128, 256, 24, 64, 64)),
    (14, 512, (112, 144, 288, 32, 64, 64)),
    (14, 528, (256, 160, 320, 32, 128, 128)),
    (7, 832, (256, 160, 320, 32, 128, 128)),
    (7, 832, (384, 192, 384, 48, 128, 128)),
)
"""Extent, input and branch widths of GoogLeNet's modules (Szegedy et al., 2014)."""


def _half(step: Layers, batch: int, channels: int, extent: Extent) -> Extent:
    """Add a pool of stride 2."""
    out = tuple(x // 2 for x in extent)
    step.pool(batch * channels * prod(extent), batch * channels * prod(out))
    return out


def activated(
    step: Layers,
    batch: int,
    c_in: int,
    c_out: int,
    extent: Extent,
    window: int | Extent,
    stride: int = 1,
    norm: bool = False,
) -> Extent:
    """Add a convolution with ReLU, batch norm between them if `norm`."""
    if norm:
        return normed(step, batch, c_in, c_out, extent, window, stride)
    out = convolution(step, batch, c_in, c_out, extent, window, stride, first=c_in == 3, bias=True)
    step.relu(batch * c_out * prod(out))
    return out


def _vgg(step: Layers, batch: int, depth: int, norm: bool) -> None:
    extent: Extent = (224, 224)
    c_in = 3
    for i, count in enumerate(VGG[depth]):
        c_out = min(64 * 2**i, 512)
        for _ in range(count):
            extent, c_in = activated(step, batch, c_in, c_out, extent, 3, norm=norm), c_out
        extent = _half(step, batch, c_out, extent)
    classifier(step, batch, (25088, 4096, 4096, 1000))


def _alexnet(step: Layers, batch: int) -> None:
    extent = activated(step, batch, 3, 64, (224, 224), 11, 4)
    extent = _half(step, batch, 64, extent)
    extent = _half(step, batch, 192, activated(step, batch, 64, 192, extent, 5))
    for c_in, c_out in ((192, 384), (384, 256), (256, 256)):
        activated(step, batch, c_in, c_out, extent, 3)
    step.pool(batch * 256 * prod(extent), batch * 9216)
    classifier(step, batch, (9216, 4096, 4096, 1000))


def _squeezenet(step: Layers, batch: int, early_pools: bool) -> None:
    width, window = (64, 3) if early_pools else (96, 7)
    extent = _half(step, batch, width, activated(step, batch, 3, width, (224, 224), window, 2))
    fires = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    pools = (1, 3) if early_pools else (2, 6)
    for i, (squeeze, expand) in enumerate(fires):
        activated(step, batch, width, squeeze, extent, 1)
        activated(step, batch, squeeze, expand, extent, 1)
        activated(step, batch, squeeze, expand, extent, 3)
        width = 2 * expand
        step.copy(batch * width * prod(extent))
        if i in pools:
            extent = _half(step, batch, width, extent)
    activated(step, batch, width, 1000, extent, 1)
    classifier(step, batch, (1000,))


def _googlenet(step: Layers, batch: int) -> None:
    extent = _half(step, batch, 64, normed(step, batch, 3, 64, (224, 224), 7, 2))
    normed(step, batch, 64, 64, extent, 1)
    _half(step, batch, 192, normed(step, batch, 64, 192, extent, 3))
    for side, c_in, (one, three_in, three, five_in, five, pool) in INCEPTION:
        space = (side, side)
        for a, b, window in (
            (c_in, one, 1),
            (c_in, three_in, 1),
            (three_in, three, 3),
            (c_in, five_in, 1),
            (five_in, five, 3),
            (c_in, pool, 1),
        ):
            normed(step, batch, a, b, space, window)
        step.pool(batch * c_in * side**2, batch * c_in * side**2)
        step.copy(batch * (one + three + five + pool) * side**2)
    classifier(step, batch, (1024, 1000))


def _densenet(step: Layers, batch: int, depth: int) -> None:
    width, growth, blocks = DENSENET[depth]
    extent = _half(step, batch, width, normed(step, batch, 3, width, (224, 224), 7, 2))
    for i, count in enumerate(blocks):
        space = prod(extent)
        for _ in range(count):
            step.batch_norm(batch * width * space)
            normed(step, batch, width, 4 * growth, extent, 1)
            convolution(step, batch, 4 * growth, growth, extent, 3)
            width += growth
            step.copy(batch * width * space)
            step.move(2 * batch * width * space, batch * width * space)
        step.batch_norm(batch * width * space)
        if i < len(blocks) - 1:
            convolution(step, batch, width, width // 2, extent, 1)
            width //= 2
            extent = _half(step, batch, width, extent)
    classifier(step, batch, (width, 1000))


NETWORKS: dict[str, Network] = {
    "alexnet": Network("alexnet", "alexnet", images(_alexnet)),
    "googlenet": Network("googlenet", "googlenet", images(_googlenet)),
}
for _depth in VGG:
    for _name, _norm in ((f"vgg{_depth}", False), (f"vgg{_depth}_bn", True)):
        NETWORKS[_name] = Network(_name, "vgg", images(partial(_vgg, depth=_depth, norm=_norm)))
for _depth in DENSENET:
    _name = f"densenet{_depth}"
    NETWORKS[_name] = Network(_name, "densenet", images(partial(_densenet, depth=_depth)))
for _name, _early in (("squeezenet1_0", False), ("squeezenet1_1", True)):
    _build = partial(_squeezenet, early_pools=_early)
    NETWORKS[_name] = Network(_name, "squeezenet", images(_build))
