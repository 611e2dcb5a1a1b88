"""3-D U-Nets of medical volumes, 128 x 128 x 128 voxels of four channels and four classes."""

from __future__ import annotations

from functools import partial
from math import prod

from benchmarks.validation.layers.convolutions import Extent, OptimizerName, convolution, update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

WIDTHS = (32, 64, 128, 256, 320, 320)
"""Channels of each level; the extent halves from one to the next (Isensee et al., 2018)."""


def _pair(
    step: Layers, batch: int, c_in: int, c_out: int, extent: Extent, stride: int, first: bool
) -> Extent:
    """Add two convolutions of 3, each with instance norm and leaky ReLU."""
    out = convolution(step, batch, c_in, c_out, extent, 3, stride, first=first)
    step.instance_norm(batch * c_out * prod(out))
    convolution(step, batch, c_out, c_out, out, 3)
    step.instance_norm(batch * c_out * prod(out))
    return out


def _unet(step: Layers, batch: int, optimizer: OptimizerName) -> None:
    extent: Extent = (128, 128, 128)
    c_in, levels = 4, []
    for i, width in enumerate(WIDTHS):
        extent = _pair(step, batch, c_in, width, extent, 1 if i == 0 else 2, i == 0)
        levels.append((width, extent))
        c_in = width
    for width, wide in reversed(levels[:-1]):
        extent = convolution(step, batch, c_in, width, extent, 2, 2, transposed=True)
        step.copy(2 * batch * width * prod(wide))
        _pair(step, batch, 2 * width, width, wide, 1, False)
        c_in = width
    convolution(step, batch, c_in, 4, extent, 1)
    step.cross_entropy(batch * 4 * prod(extent))
    update(step, optimizer)


NETWORKS: dict[str, Network] = {
    row.name: row
    for row in (
        Network(
            "nnunet-3d",
            "unet3d",
            images(partial(_unet, optimizer="adam")),
            channels_last=("torch",),
            compiled=("tensorflow",),
        ),
        Network("unet3d-medical", "unet3d", images(partial(_unet, optimizer="adam"))),
    )
}
