"""DarkNet-53 and the detectors YOLOv3 (416 x 416) and YOLOv5 (640 x 640), 80 classes."""

from __future__ import annotations

from functools import partial
from math import ceil, prod

from benchmarks.validation.layers.convolutions import (
    Extent,
    classifier,
    convolution,
    normed,
    update,
)
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

DARKNET = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))
"""Width and residual blocks of each stage (Redmon and Farhadi, 2018)."""

YOLOV5 = {"s": (1 / 3, 0.5), "m": (2 / 3, 0.75), "l": (1.0, 1.0), "x": (4 / 3, 1.25)}
"""Depth and width over those of the large one (github:ultralytics/yolov5, release 6)."""

OUTPUTS = 3 * 85
"""Three boxes a place: four sides, whether there is one, and 80 classes."""


def _darknet(step: Layers, batch: int, side: int) -> list[Extent]:
    """Add the backbone; return the extents behind its stages."""
    extent = normed(step, batch, 3, 32, (side, side), 3)
    extents = []
    for width, blocks in DARKNET:
        extent = normed(step, batch, width // 2, width, extent, 3, 2)
        step.repeat(blocks)
        normed(step, batch, width, width // 2, extent, 1)
        normed(step, batch, width // 2, width, extent, 3)
        step.residual(batch * width * prod(extent))
        step.repeat(1)
        extents.append(extent)
    return extents


def _darknet53(step: Layers, batch: int) -> None:
    extent = _darknet(step, batch, 256)[-1]
    step.pool(batch * 1024 * prod(extent), batch * 1024)
    classifier(step, batch, (1024, 1000))


def _boxes(step: Layers, batch: int, c_in: int, extent: Extent) -> None:
    """Add the boxes of a map and their loss."""
    convolution(step, batch, c_in, OUTPUTS, extent, 1, bias=True)
    logits = batch * OUTPUTS * prod(extent)
    step.copy(logits)
    step.cross_entropy(logits)


def _doubled(step: Layers, batch: int, channels: int, extent: Extent, joined: int) -> None:
    """Add a map of twice the extent, and its concatenation with another: `joined` channels."""
    wide = batch * 4 * prod(extent)
    step.move(channels * wide / 4, channels * wide)
    step.move(channels * wide, channels * wide / 4)
    step.copy(joined * wide)


def _yolov3(step: Layers, batch: int) -> None:
    maps = _darknet(step, batch, 416)
    c_in = 1024
    for width, extent in zip((512, 256, 128), reversed(maps), strict=False):
        for i in range(5):
            c_out, window = (width, 1) if i % 2 == 0 else (2 * width, 3)
            normed(step, batch, c_in, c_out, extent, window)
            c_in = c_out
        step.branch(batch * width * prod(extent))
        normed(step, batch, width, 2 * width, extent, 3)
        _boxes(step, batch, 2 * width, extent)
        if width > 128:
            step.branch(batch * width * prod(extent))
            normed(step, batch, width, width // 2, extent, 1)
            c_in = width // 2 + width
            _doubled(step, batch, width // 2, extent, c_in)
    update(step, "momentum")


def _cross(
    step: Layers, batch: int, c_in: int, c_out: int, extent: Extent, blocks: int, add: bool = True
) -> None:
    """Add a stage of which half the channels pass blocks ("C3"), residual ones if `add`."""
    half, space = c_out // 2, prod(extent)
    normed(step, batch, c_in, half, extent, 1)
    step.repeat(blocks)
    normed(step, batch, half, half, extent, 1)
    normed(step, batch, half, half, extent, 3)
    if add:
        step.residual(batch * half * space)
    step.repeat(1)
    step.branch(batch * c_in * space)
    normed(step, batch, c_in, half, extent, 1)
    step.copy(batch * c_out * space)
    normed(step, batch, c_out, c_out, extent, 1)


def _yolov5(step: Layers, batch: int, size: str) -> None:
    depth, share = YOLOV5[size]
    widths = [round(width * share) for width in (64, 128, 256, 512, 1024)]
    extent = normed(step, batch, 3, widths[0], (640, 640), 6, 2)
    maps = []
    for c_in, c_out, blocks in zip(widths, widths[1:], (3, 6, 9, 3), strict=False):
        extent = normed(step, batch, c_in, c_out, extent, 3, 2)
        _cross(step, batch, c_out, c_out, extent, ceil(blocks * depth - 1e-9))
        maps.append(extent)
    (_, _, c3, c4, c5), (_, e3, e4, e5), few = widths, maps, ceil(3 * depth - 1e-9)
    normed(step, batch, c5, c5 // 2, e5, 1)
    for _ in range(3):
        step.pool(batch * c5 // 2 * prod(e5), batch * c5 // 2 * prod(e5))
    step.copy(batch * 2 * c5 * prod(e5))
    normed(step, batch, 2 * c5, c5, e5, 1)
    normed(step, batch, c5, c4, e5, 1)
    _doubled(step, batch, c4, e5, 2 * c4)
    _cross(step, batch, 2 * c4, c4, e4, few, add=False)
    normed(step, batch, c4, c3, e4, 1)
    _doubled(step, batch, c3, e4, 2 * c3)
    _cross(step, batch, 2 * c3, c3, e3, few, add=False)
    _boxes(step, batch, c3, e3)
    for c_in, c_out, extent in ((c3, c4, e3), (c4, c5, e4)):
        step.branch(batch * c_in * prod(extent))
        out = normed(step, batch, c_in, c_in, extent, 3, 2)
        step.copy(batch * c_out * prod(out))
        _cross(step, batch, c_out, c_out, out, few, add=False)
        _boxes(step, batch, c_out, out)
    update(step, "momentum")


NETWORKS: dict[str, Network] = {
    "darknet53": Network("darknet53", "darknet", images(_darknet53)),
    "yolov3": Network("yolov3", "yolo", images(_yolov3)),
} | {
    f"yolov5{size}": Network(f"yolov5{size}", "yolo", images(partial(_yolov5, size=size)))
    for size in YOLOV5
}
