"""MobileNetV3 and EfficientNetV2: inverted residual blocks of listed widths."""

from __future__ import annotations

from functools import partial
from math import prod

from benchmarks.validation.layers.convolutions import Extent, classifier, normed
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.mobile import inverted, rounded
from benchmarks.validation.networks.network import Network, images

Blocks = tuple[tuple[int, int, int, int, bool], ...]

LARGE: Blocks = (
    (16, 16, 1, 3, False),
    (64, 24, 2, 3, False),
    (72, 24, 1, 3, False),
    (72, 40, 2, 5, True),
    (120, 40, 1, 5, True),
    (120, 40, 1, 5, True),
    (240, 80, 2, 3, False),
    (200, 80, 1, 3, False),
    (184, 80, 1, 3, False),
    (184, 80, 1, 3, False),
    (480, 112, 1, 3, True),
    (672, 112, 1, 3, True),
    (672, 160, 2, 5, True),
    (960, 160, 1, 5, True),
    (960, 160, 1, 5, True),
)
"""Inner width, width, stride, window and squeeze of each block (Howard et al., 2019)."""

SMALL: Blocks = (
    (16, 16, 2, 3, True),
    (72, 24, 2, 3, False),
    (88, 24, 1, 3, False),
    (96, 40, 2, 5, True),
    (240, 40, 1, 5, True),
    (240, 40, 1, 5, True),
    (120, 48, 1, 5, True),
    (144, 48, 1, 5, True),
    (288, 96, 2, 5, True),
    (576, 96, 1, 5, True),
    (576, 96, 1, 5, True),
)

V2_SMALL = (
    (1, 24, 2, 1, False),
    (4, 48, 4, 2, False),
    (4, 64, 4, 2, False),
    (4, 128, 6, 2, True),
    (6, 160, 9, 1, True),
    (6, 256, 15, 2, True),
)
"""Expansion, width, blocks, stride and whether depthwise with squeeze (Tan and Le, 2021)."""


def _last(step: Layers, batch: int, c_in: int, widths: tuple[int, ...], extent: Extent) -> None:
    """Add a convolution of 1, and products of the other widths behind the pool."""
    mid = widths[0]
    normed(step, batch, c_in, mid, extent, 1)
    step.pool(batch * mid * prod(extent), batch * mid)
    for width in widths[1:]:
        step.linear(batch, mid, width)
        step.relu(batch * width)
        mid = width
    step.dropout(batch * mid)
    classifier(step, batch, (mid, 1000))


def _mobilenet_v3(step: Layers, batch: int, blocks: Blocks, last: tuple[int, int]) -> None:
    c_in, extent = 16, normed(step, batch, 3, 16, (224, 224), 3, 2)
    for mid, c_out, stride, window, squeezed in blocks:
        squeeze = rounded(mid // 4) if squeezed else 0
        extent = inverted(step, batch, c_in, (mid, c_out, stride, window), extent, squeeze)
        c_in = c_out
    _last(step, batch, c_in, last, extent)


def _efficientnet_v2(step: Layers, batch: int, side: int) -> None:
    """EfficientNetV2-S at the extent that it is trained at."""
    c_in, extent = 24, normed(step, batch, 3, 24, (side, side), 3, 2)
    for expansion, c_out, blocks, first_stride, depthwise in V2_SMALL:
        for i in range(blocks):
            mid, stride = c_in * expansion, first_stride if i == 0 else 1
            if depthwise:
                row = (mid, c_out, stride, 3)
                extent = inverted(step, batch, c_in, row, extent, c_in // 4)
            else:
                wide = mid if expansion > 1 else c_out
                extent = normed(step, batch, c_in, wide, extent, 3, stride)
                if wide != c_out:
                    normed(step, batch, wide, c_out, extent, 1, relu=False)
                if stride == 1 and c_in == c_out:
                    step.residual(batch * c_out * prod(extent))
            c_in = c_out
    _last(step, batch, c_in, (1280,), extent)


NETWORKS: dict[str, Network] = {
    row.name: row
    for row in (
        Network(
            "mobilenet_v3_large",
            "mobilenet",
            images(partial(_mobilenet_v3, blocks=LARGE, last=(960, 1280))),
        ),
        Network(
            "mobilenet_v3_small",
            "mobilenet",
            images(partial(_mobilenet_v3, blocks=SMALL, last=(576, 1024))),
        ),
        Network("efficientnet_v2_s", "efficientnet", images(partial(_efficientnet_v2, side=300))),
    )
}
