"""Object detectors on a ResNet."""

from __future__ import annotations

from math import prod

from benchmarks.validation.layers.convolutions import Extent, convolution, normed, update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images
from benchmarks.validation.networks.plain import activated
from benchmarks.validation.networks.residual import stages, stem

DETECTED = (800, 1344)
"""Extent of the images of detectors with a pyramid."""

PROPOSALS = 512
"""Regions of an image that the second stage is trained on."""

MATCHING_SECONDS = 0.05
"""Host seconds per image for masks of polygons, matching and suppression; assumed, with the two
published rows of this network in view."""


def _ssd(step: Layers, batch: int) -> None:
    """SSD of 300 x 300 images, three stages of ResNet-50, six feature maps (Liu et al., 2015)."""
    channels, extent = stages(
        step, batch, 50, stem(step, batch, (300, 300)), last_stride=1, first_stages=3
    )
    sources = [(channels, extent)]
    steps = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 2), (128, 256, 3))
    for mid, c_out, stride in steps:
        normed(step, batch, channels, mid, extent, 1)
        extent = normed(step, batch, mid, c_out, extent, 3, stride)
        channels = c_out
        sources.append((channels, extent))
    for (channels, extent), boxes in zip(sources, (4, 6, 6, 6, 4, 4), strict=True):
        for outputs in (4, 81):
            step.branch(batch * channels * prod(extent))
            convolution(step, batch, channels, boxes * outputs, extent, 3, bias=True)
            step.copy(batch * boxes * outputs * prod(extent))
    logits = batch * 8732 * 81
    step.cross_entropy(logits)
    step.move(2 * logits, logits, 4)  # hard negatives are sorted in float32
    update(step, "momentum")


def _pyramid(step: Layers, batch: int, maps: list[Extent], widths: tuple[int, ...]) -> None:
    """Add a map of 256 channels for each stage, summed from the coarsest on."""
    for c_in, extent in zip(widths, maps, strict=False):
        convolution(step, batch, c_in, 256, extent, 1, bias=True)
        convolution(step, batch, 256, 256, extent, 3, bias=True)
        step.residual(batch * 256 * prod(extent))


def _proposals(step: Layers, batch: int) -> int:
    """Add ResNet-50, its pyramid and the first stage; return the regions of the second."""
    pooled = stem(step, batch, DETECTED)
    stages(step, batch, 50, pooled, frozen=True)
    maps = [tuple(x // 2**i for x in pooled) for i in range(5)]
    _pyramid(step, batch, maps, (256, 512, 1024, 2048))
    held = step.parameters, step.tensors
    for extent in maps:
        step.parameters, step.tensors = held  # all maps share a head
        activated(step, batch, 256, 256, extent, 3)
        convolution(step, batch, 256, 16, extent, 1, bias=True)
    step.wait(batch * MATCHING_SECONDS)
    return batch * PROPOSALS


def _align(step: Layers, regions: float, side: int) -> None:
    """Add the sampling of regions: four neighbours of each sample, in float32."""
    elements = regions * 256 * side**2
    step.cast(elements, 2)
    step.move(4 * elements, elements, 4)
    step.move(elements, 4 * elements, 4)


def _boxes(step: Layers, regions: int) -> None:
    step.linear(regions, 256 * 49, 1024)
    step.linear(regions, 1024, 1024)
    step.linear(regions, 1024, 81 * 5)


def _faster_rcnn(step: Layers, batch: int) -> None:
    """Faster R-CNN with a pyramid, images of 800 x 1344 (Ren et al., 2015; Lin et al., 2016)."""
    regions = _proposals(step, batch)
    _align(step, regions, 7)
    _boxes(step, regions)
    step.cross_entropy(regions * 81)
    update(step, "momentum")


def _mask_rcnn(step: Layers, batch: int) -> None:
    """Mask R-CNN with a pyramid, images of 800 x 1344, two stages (He et al., 2017)."""
    regions = _proposals(step, batch)
    for side, share in ((7, 1.0), (14, 0.25)):
        _align(step, regions * share, side)
    _boxes(step, regions)
    masks = regions // 4
    for _ in range(4):
        activated(step, masks, 256, 256, (14, 14), 3)
    convolution(step, masks, 256, 256, (14, 14), 2, 2, transposed=True, bias=True)
    convolution(step, masks, 256, 81, (28, 28), 1, bias=True)
    step.cross_entropy(masks * 81 * 784)
    update(step, "momentum")


def _retinanet(step: Layers, batch: int) -> None:
    """RetinaNet, images of 800 x 1344, 91 classes (Lin et al., 2017), as in torchvision.

    Anchors are matched on the device.
    """
    pooled = stem(step, batch, DETECTED)
    stages(step, batch, 50, pooled, frozen=True)
    maps = [tuple(-(-x // 2**i) for x in pooled) for i in range(1, 6)]
    _pyramid(step, batch, maps[:3], (512, 1024, 2048))
    for extent in maps[2:4]:
        convolution(step, batch, 256, 256, extent, 3, 2, bias=True)
    for outputs in (9 * 91, 9 * 4):
        held = step.parameters, step.tensors
        for extent in maps:
            step.parameters, step.tensors = held  # all maps share a head
            for _ in range(4):
                activated(step, batch, 256, 256, extent, 3)
            convolution(step, batch, 256, outputs, extent, 3, bias=True)
            step.copy(batch * outputs * prod(extent))
    step.cross_entropy(batch * 9 * 91 * sum(prod(extent) for extent in maps))
    update(step, "momentum")


NETWORKS: dict[str, Network] = {
    "ssd300-resnet50": Network("ssd300-resnet50", "ssd", images(_ssd)),
    "mask-rcnn-r50-fpn": Network(
        "mask-rcnn-r50-fpn", "mask-rcnn", images(_mask_rcnn), compiled=("tensorflow",)
    ),
    "faster-rcnn-r50-fpn": Network("faster-rcnn-r50-fpn", "mask-rcnn", images(_faster_rcnn)),
    "retinanet-r50-fpn": Network("retinanet-r50-fpn", "retinanet", images(_retinanet)),
}
