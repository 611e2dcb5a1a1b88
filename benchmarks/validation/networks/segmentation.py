"""Networks that label every place of an image: FCN, DeepLabV3 and U-Net."""

from __future__ import annotations

from functools import partial
from math import prod

from benchmarks.validation.layers.convolutions import Extent, convolution, normed, update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images
from benchmarks.validation.networks.residual import stages, stem

SIDE, CLASSES = 520, 21
"""Of FCN and DeepLabV3."""


def _fully(step: Layers, batch: int, c_in: int, extent: Extent) -> None:
    """Add the head of FCN, and the loss at the image's extent."""
    mid = c_in // 4
    normed(step, batch, c_in, mid, extent, 3)
    step.dropout(batch * mid * prod(extent))
    _labels(step, batch, mid, extent)


def _labels(step: Layers, batch: int, c_in: int, extent: Extent) -> None:
    convolution(step, batch, c_in, CLASSES, extent, 1, bias=True)
    logits = batch * CLASSES * SIDE**2
    step.move(4 * logits, logits)
    step.move(logits, 4 * logits)
    step.cross_entropy(logits)


def _pyramid(step: Layers, batch: int, c_in: int, extent: Extent) -> None:
    """Add the head of DeepLabV3: windows with gaps, and the image's mean, side by side."""
    elements = batch * 256 * prod(extent)
    for window in (1, 3, 3, 3):
        step.branch(batch * c_in * prod(extent))
        normed(step, batch, c_in, 256, extent, window, dilated=window > 1)
    step.pool(batch * c_in * prod(extent), batch * c_in)
    normed(step, batch, c_in, 256, (1, 1), 1)
    step.move(0, elements)
    step.move(elements, 0)
    step.copy(5 * elements)
    normed(step, batch, 5 * 256, 256, extent, 1)
    step.dropout(elements)
    normed(step, batch, 256, 256, extent, 3)
    _labels(step, batch, 256, extent)


def _segmented(step: Layers, batch: int, depth: int, pyramid: bool) -> None:
    """Long et al., 2014; Chen et al., 2017; with the auxiliary head, as in torchvision."""
    channels, extent = stages(step, batch, depth, stem(step, batch, (SIDE, SIDE)), dilated_stages=2)
    if pyramid:
        _pyramid(step, batch, channels, extent)
    else:
        _fully(step, batch, channels, extent)
    step.branch(batch * channels // 2 * prod(extent))
    _fully(step, batch, channels // 2, extent)
    update(step, "momentum")


def _pair(step: Layers, batch: int, c_in: int, c_out: int, extent: Extent) -> None:
    normed(step, batch, c_in, c_out, extent, 3)
    normed(step, batch, c_out, c_out, extent, 3)


def _unet(step: Layers, batch: int) -> None:
    """U-Net of 64 to 1024 channels, 512 x 512 images, two classes (Ronneberger et al., 2015).

    Padded, with batch norm, as in github:milesial/Pytorch-UNet.
    """
    extent: Extent = (512, 512)
    _pair(step, batch, 3, 64, extent)
    for width in (64, 128, 256, 512):
        half = tuple(x // 2 for x in extent)
        step.pool(batch * width * prod(extent), batch * width * prod(half))
        extent = half
        _pair(step, batch, width, 2 * width, extent)
    for width in (512, 256, 128, 64):
        extent = convolution(
            step, batch, 2 * width, width, extent, 2, 2, transposed=True, bias=True
        )
        step.copy(2 * batch * width * prod(extent))
        _pair(step, batch, 2 * width, width, extent)
    convolution(step, batch, 64, 2, extent, 1, bias=True)
    step.cross_entropy(batch * 2 * prod(extent))
    update(step, "adam")


NETWORKS: dict[str, Network] = {
    f"{name}_resnet{depth}": Network(
        f"{name}_resnet{depth}", name, images(partial(_segmented, depth=depth, pyramid=pyramid))
    )
    for name, pyramid in (("fcn", False), ("deeplabv3", True))
    for depth in (50, 101)
} | {"unet": Network("unet", "unet", images(_unet))}
