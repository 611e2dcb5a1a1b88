"""The model of `policysearch.nn.models.resnet` in torch, by torch's own layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn import functional


class BasicBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or n_in != n_out:
            side = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(side, nn.BatchNorm2d(n_out))

    def forward(self, x: Any) -> Any:
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inner + self.downsample(x))


def resnet(channels: int, widths: Sequence[int], classes: int) -> nn.Module:
    """Return the net for small images: two blocks per width, all but the first halve the image."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    before = widths[0]
    for stage, width in enumerate(widths):
        layers += [BasicBlock(before, width, 2 if stage else 1), BasicBlock(width, width, 1)]
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*layers)
