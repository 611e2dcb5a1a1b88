"""Image networks of depthwise convolutions: MobileNetV2, MnasNet, ShuffleNetV2, EfficientNet."""

from __future__ import annotations

from functools import partial
from math import ceil, prod

from benchmarks.validation.layers.convolutions import Extent, classifier, normed, squeeze_excite
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

Rows = tuple[tuple[int, int, int, int, int], ...]

MOBILENET: Rows = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 32, 3, 2, 3),
    (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)
"""Expansion, width, blocks, stride and window of each stage (Sandler et al., 2018)."""

MNASNET: Rows = (
    (1, 16, 1, 1, 3),
    (3, 24, 3, 2, 3),
    (3, 40, 3, 2, 5),
    (6, 80, 3, 2, 5),
    (6, 96, 2, 1, 3),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""The same of MnasNet (Tan et al., 2018)."""

EFFICIENTNET: Rows = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
"""The same of EfficientNet-B0 (Tan and Le, 2019)."""


def rounded(width: float) -> int:
    """Return the nearest multiple of 8 that is at least nine tenths of a width."""
    nearest = max(8, int(width + 4) // 8 * 8)
    return nearest + 8 * (nearest < 0.9 * width)


def inverted(
    step: Layers,
    batch: int,
    c_in: int,
    row: tuple[int, int, int, int],
    extent: Extent,
    squeeze: int,
) -> Extent:
    """Add an inverted residual block of (inner width, width, stride, window); return its extent.

    `squeeze`: the width of squeeze and excitation, 0 for none.
    """
    mid, c_out, stride, window = row
    if mid != c_in:
        normed(step, batch, c_in, mid, extent, 1)
    out = normed(step, batch, mid, mid, extent, window, stride, groups=mid)
    if squeeze:
        squeeze_excite(step, batch, mid, squeeze, batch * mid * prod(out))
    normed(step, batch, mid, c_out, out, 1, relu=False)
    if stride == 1 and c_in == c_out:
        step.residual(batch * c_out * prod(out))
    return out


def _mobile(
    step: Layers,
    batch: int,
    rows: Rows,
    width: float = 1.0,
    depth: float = 1.0,
    side: int = 224,
    squeeze: bool = False,
) -> None:
    c_in = rounded(32 * width)
    extent = normed(step, batch, 3, c_in, (side, side), 3, 2)
    for expansion, planes, blocks, stride, window in rows:
        c_out = rounded(planes * width)
        for i in range(ceil(blocks * depth)):
            row = (c_in * expansion, c_out, stride if i == 0 else 1, window)
            extent = inverted(step, batch, c_in, row, extent, c_in // 4 if squeeze else 0)
            c_in = c_out
    last = rounded(1280 * max(1.0, width)) if squeeze else 1280
    normed(step, batch, c_in, last, extent, 1)
    step.dropout(batch * last)
    classifier(step, batch, (last, 1000))


def _shufflenet(step: Layers, batch: int, widths: tuple[int, ...]) -> None:
    """Halves of the channels through 1 x 1, depthwise and 1 x 1 (Ma et al., 2018)."""
    extent = normed(step, batch, 3, 24, (224, 224), 3, 2)
    extent, c_in = tuple(x // 2 for x in extent), 24
    step.pool(4 * batch * 24 * prod(extent), batch * 24 * prod(extent))
    for c_out, blocks in zip(widths, (4, 8, 4), strict=False):
        half = c_out // 2
        for i in range(blocks):
            stride, given = (2, c_in) if i == 0 else (1, half)
            normed(step, batch, given, half, extent, 1)
            extent = normed(step, batch, half, half, extent, 3, stride, groups=half, relu=False)
            normed(step, batch, half, half, extent, 1)
            step.copy(2 * batch * c_out * prod(extent))
        c_in = c_out
    normed(step, batch, c_in, widths[-1], extent, 1)
    classifier(step, batch, (widths[-1], 1000))


NETWORKS: dict[str, Network] = {
    "mobilenet_v2": Network("mobilenet_v2", "mobilenet", images(partial(_mobile, rows=MOBILENET)))
}
for _width in (0.5, 0.75, 1.0, 1.3):
    _name = f"mnasnet{_width}".replace(".", "_")
    _build = partial(_mobile, rows=MNASNET, width=_width)
    NETWORKS[_name] = Network(_name, "mnasnet", images(_build))
for _name, _widths in (
    ("shufflenet_v2_x0_5", (48, 96, 192, 1024)),
    ("shufflenet_v2_x1_0", (116, 232, 464, 1024)),
    ("shufflenet_v2_x1_5", (176, 352, 704, 1024)),
    ("shufflenet_v2_x2_0", (244, 488, 976, 2048)),
):
    NETWORKS[_name] = Network(_name, "shufflenet", images(partial(_shufflenet, widths=_widths)))
for _name, _width, _depth, _side in (
    ("efficientnet-b0", 1.0, 1.0, 224),
    ("efficientnet-b1", 1.0, 1.1, 240),
    ("efficientnet-b2", 1.1, 1.2, 260),
    ("efficientnet-b3", 1.2, 1.4, 300),
    ("efficientnet-b4", 1.4, 1.8, 380),
    ("efficientnet-b5", 1.6, 2.2, 456),
    ("efficientnet-b6", 1.8, 2.6, 528),
    ("efficientnet-b7", 2.0, 3.1, 600),
):
    _build = partial(
        _mobile, rows=EFFICIENTNET, width=_width, depth=_depth, side=_side, squeeze=True
    )
    NETWORKS[_name] = Network(_name, "efficientnet", images(_build))
