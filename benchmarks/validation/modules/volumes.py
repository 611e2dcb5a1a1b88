"""U-Nets of medical images and volumes in plain torch, four channels and four classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTHS = {3: (32, 64, 128, 256, 320, 320), 2: (32, 64, 128, 256, 512, 512)}
"""Channels of each level by dimension; the extent halves in between (Isensee et al., 2018)."""

EXTENTS = {3: (128, 128, 128), 2: (192, 160)}


class Pair(nn.Module):
    """Two convolutions of 3, each with instance norm and leaky ReLU."""

    def __init__(self, dimension: int, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        convolution = nn.Conv3d if dimension == 3 else nn.Conv2d
        norm = nn.InstanceNorm3d if dimension == 3 else nn.InstanceNorm2d
        layers: list[nn.Module] = []
        for n_in, step in ((c_in, stride), (c_out, 1)):
            layers.append(convolution(n_in, c_out, 3, step, 1, bias=False))
            layers += [norm(c_out, affine=True), nn.LeakyReLU(0.01)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class UNet(nn.Module):
    """Levels down and up, what a level makes on the way down fed to that on the way up."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        widths = WIDTHS[dimension]
        wider = nn.ConvTranspose3d if dimension == 3 else nn.ConvTranspose2d
        convolution = nn.Conv3d if dimension == 3 else nn.Conv2d
        starts = (4, *widths)
        self.down = nn.ModuleList(
            Pair(dimension, starts[i], width, 1 if i == 0 else 2) for i, width in enumerate(widths)
        )
        ups = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.wider = nn.ModuleList(wider(c_in, c_out, 2, 2, bias=False) for c_in, c_out in ups)
        self.up = nn.ModuleList(Pair(dimension, 2 * c_out, c_out, 1) for _, c_out in ups)
        self.classes = convolution(widths[0], 4, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
        for wider, level, beside in zip(self.wider, self.up, kept[-2::-1], strict=True):
            x = level(torch.cat([wider(x), beside], 1))
        return self.classes(x).flatten(2).transpose(1, 2)


def unet(dimension: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: images (2) or volumes (3)."""
    return UNet(dimension), (torch.zeros(2, 4, *EXTENTS[dimension]),)


class PlainUNet(nn.Module):
    """The first U-Net with batch norms and padding, 64 to 1024 channels (Ronneberger, 2015)."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        starts, ups = (3, *widths), list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.down = nn.ModuleList(self._twice(a, b) for a, b in zip(starts, widths, strict=False))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in ups)
        self.up = nn.ModuleList(self._twice(2 * b, b) for _, b in ups)
        self.classes = nn.Conv2d(widths[0], 21, 1)

    def _twice(self, c_in: int, c_out: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for n_in in (c_in, c_out):
            layers += [nn.Conv2d(n_in, c_out, 3, 1, 1, bias=False), nn.BatchNorm2d(c_out)]
            layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        kept: list[Any] = []
        for level in self.down:
            x = level(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for wider, level, beside in zip(self.wider, self.up, kept[-2::-1], strict=True):
            x = level(torch.cat([beside, wider(x)], 1))
        return self.classes(x).flatten(2).transpose(1, 2)


def plain_unet() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: images of 256."""
    return PlainUNet(), (torch.zeros(2, 3, 256, 256),)
