"""Detectors. Mask R-CNN: a pyramid over ResNet-50 with frozen norms, and heads of regions.

Proposals, matching and suppression, and the sampling of regions are no part of the graph: a region
is a piece of the finest map, of the size that the heads read. Published timings of torch's scripts
are of the first hundreds of steps, when no proposal is near an object: masks are of the objects
alone. TensorFlow's script has fixed extents: masks of a quarter of the regions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

EXTENT, FIXED_EXTENT = (800, 1344), (832, 1344)
PROPOSALS = 512
OBJECTS = 8
"""Of an image of COCO: 860,001 in 117,266 images."""
CLASSES = 81


class Frozen(nn.Module):
    """A batch norm that nothing moves: a scale and an offset."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1, width, 1, 1))
        self.register_buffer("offset", torch.zeros(1, width, 1, 1))

    def forward(self, x: Any) -> Any:
        return x * self.scale + self.offset


class Bottleneck(nn.Module):
    """A residual block of three convolutions, the stride on the second."""

    def __init__(self, c_in: int, mid: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(c_in, mid, 1, bias=False)
        self.second = nn.Conv2d(mid, mid, 3, stride, 1, bias=False)
        self.third = nn.Conv2d(mid, 4 * mid, 1, bias=False)
        self.norms = nn.ModuleList(Frozen(width) for width in (mid, mid, 4 * mid))
        self.shortcut = nn.Sequential()
        if c_in != 4 * mid:
            self.shortcut = nn.Sequential(
                nn.Conv2d(c_in, 4 * mid, 1, stride, bias=False), Frozen(4 * mid)
            )

    def forward(self, x: Any) -> Any:
        inner = F.relu(self.norms[0](self.first(x)))
        inner = F.relu(self.norms[1](self.second(inner)))
        return F.relu(self.norms[2](self.third(inner)) + self.shortcut(x))


class MaskRcnn(nn.Module):
    """Mask R-CNN, two stages, `count` masks an image (He et al., 2017); returns its own loss."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), Frozen(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stem[0].weight.requires_grad_(False)
        stages: list[nn.Module] = []
        c_in = 64
        for place, (mid, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            blocks = []
            for i in range(count):
                blocks.append(Bottleneck(c_in, mid, 2 if place and not i else 1))
                c_in = 4 * mid
            stages.append(nn.Sequential(*blocks))
        for parameter in stages[0].parameters():
            parameter.requires_grad_(False)
        self.stages = nn.ModuleList(stages)
        self.inner = nn.ModuleList(nn.Conv2d(256 * 2**i, 256, 1) for i in range(4))
        self.outer = nn.ModuleList(nn.Conv2d(256, 256, 3, 1, 1) for _ in range(4))
        self.seen = nn.Conv2d(256, 256, 3, 1, 1)
        self.told = nn.Conv2d(256, 15, 1)
        self.boxes = nn.Sequential(
            nn.Linear(256 * 49, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        )
        self.classes = nn.Linear(1024, 5 * CLASSES)
        masks: list[nn.Module] = []
        for _ in range(4):
            masks += [nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU()]
        self.masks = nn.Sequential(*masks, nn.ConvTranspose2d(256, 256, 2, 2), nn.ReLU())
        self.drawn = nn.Conv2d(256, CLASSES, 1)

    def maps(self, x: Any) -> list[Any]:
        """Return the maps of the pyramid, the finest first."""
        x, found = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        sums = [self.inner[3](found[3])]
        for place in (2, 1, 0):
            wider = F.interpolate(sums[0], scale_factor=2.0, mode="nearest")
            sums.insert(0, self.inner[place](found[place]) + wider)
        maps = [outer(x) for outer, x in zip(self.outer, sums, strict=True)]
        return [*maps, F.max_pool2d(maps[3], 1, 2)]

    def regions(self, x: Any, count: int, side: int) -> Any:
        """Return pieces of a map [batch, 256, 200, 336] as [batch * count, 256, side, side]."""
        rows = x.flatten(2)[:, :, : count * side * side]
        return rows.unflatten(2, (count, side, side)).transpose(1, 2).flatten(0, 1)

    def forward(self, images: Any) -> Any:
        maps = self.maps(images)
        told = [self.told(F.relu(self.seen(x))) for x in maps]
        first = sum(x.square().mean() for x in told)
        hidden = self.boxes(self.regions(maps[0], PROPOSALS, 7).flatten(1))
        second = self.classes(hidden).square().mean()
        masks = self.drawn(self.masks(self.regions(maps[0], self.count, 14)))
        return first + second + masks.square().mean()


def mask_rcnn() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: images."""
    return MaskRcnn(OBJECTS), (torch.zeros(2, 3, *EXTENT),)


def fixed_mask_rcnn() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net of fixed extents and example inputs: images."""
    return MaskRcnn(PROPOSALS // 4), (torch.zeros(2, 3, *FIXED_EXTENT),)


class Ssd(nn.Module):
    """SSD of 300 x 300 over ResNet-50 without its last stage, as NVIDIA has it (v1.1)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _unit(3, 64, 7, 2)
        blocks: list[nn.Module] = []
        c_in = 64
        for place, (mid, count) in enumerate(((64, 3), (128, 4), (256, 6))):
            for i in range(count):
                blocks.append(Residual(c_in, mid, 2 if place == 1 and not i else 1))
                c_in = 4 * mid
        self.blocks = nn.Sequential(*blocks)
        widths = (1024, 512, 512, 256, 256, 256)
        inner = (256, 256, 128, 128, 128)
        self.extra = nn.ModuleList(
            nn.Sequential(_unit(a, c, 1), _unit(c, b, 3, 2 if i < 3 else 1, 1 if i < 3 else 0))
            for i, (a, b, c) in enumerate(zip(widths, widths[1:], inner, strict=False))
        )
        counts = (4, 6, 6, 6, 4, 4)
        self.told = nn.ModuleList(
            nn.Conv2d(a, count * (4 + CLASSES), 3, 1, 1)
            for a, count in zip(widths, counts, strict=True)
        )

    def forward(self, images: Any) -> Any:
        x = self.blocks(F.max_pool2d(self.stem(images), 3, 2, 1))
        total = self.told[0](x).square().mean()
        for told, extra in zip(self.told[1:], self.extra, strict=True):
            x = extra(x)
            total = total + told(x).square().mean()
        return total


def _unit(
    c_in: int, c_out: int, kernel: int, stride: int = 1, padding: int | None = None
) -> nn.Sequential:
    """Return a convolution with its norm and ReLU."""
    pad = kernel // 2 if padding is None else padding
    convolution = nn.Conv2d(c_in, c_out, kernel, stride, pad, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(c_out), nn.ReLU())


class Residual(nn.Module):
    """A residual block of three convolutions, norms trained."""

    def __init__(self, c_in: int, mid: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_unit(c_in, mid, 1), _unit(mid, mid, 3, stride))
        self.last = nn.Sequential(nn.Conv2d(mid, 4 * mid, 1, bias=False), nn.BatchNorm2d(4 * mid))
        self.shortcut = nn.Sequential()
        if c_in != 4 * mid or stride > 1:
            beside = nn.Conv2d(c_in, 4 * mid, 1, stride, bias=False)
            self.shortcut = nn.Sequential(beside, nn.BatchNorm2d(4 * mid))

    def forward(self, x: Any) -> Any:
        return F.relu(self.last(self.inner(x)) + self.shortcut(x))


class Yolo(nn.Module):
    """YOLOv3 over Darknet-53, images of 416 (Redmon and Farhadi, 2018)."""

    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        c_in = 32
        for count in (1, 2, 8, 8, 4):
            layers: list[nn.Module] = [_unit(c_in, 2 * c_in, 3, 2)]
            c_in *= 2
            layers += [Narrow(c_in) for _ in range(count)]
            stages.append(nn.Sequential(*layers))
        self.stem, self.stages = _unit(3, 32, 3), nn.ModuleList(stages)
        self.necks, self.ends, self.links = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for width, more in ((512, 1024), (256, 768), (128, 384)):
            parts = [_unit(more, width, 1)]
            for _ in range(2):
                parts += [_unit(width, 2 * width, 3), _unit(2 * width, width, 1)]
            self.necks.append(nn.Sequential(*parts))
            last = nn.Conv2d(2 * width, 3 * (5 + CLASSES - 1), 1)
            self.ends.append(nn.Sequential(_unit(width, 2 * width, 3), last))
            self.links.append(_unit(width, width // 2, 1))

    def forward(self, images: Any) -> Any:
        x, found = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        total, beside = 0.0, None
        for place, map_ in enumerate(found[:1:-1]):
            x = map_ if beside is None else torch.cat([beside, map_], 1)
            x = self.necks[place](x)
            total = total + self.ends[place](x).square().mean()
            if place < 2:
                beside = F.interpolate(self.links[place](x), scale_factor=2.0, mode="nearest")
        return total


class Narrow(nn.Module):
    """A residual block of Darknet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_unit(width, width // 2, 1), _unit(width // 2, width, 3))

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


def ssd() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: images."""
    return Ssd(), (torch.zeros(2, 3, 300, 300),)


def yolo() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: images."""
    return Yolo(), (torch.zeros(2, 3, 416, 416),)
