"""Convolutional nets as their authors write them in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 5


class Residual(nn.Module):
    """The basic block of arXiv 1512.03385."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Any:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for number in range(1, 5):
            n_in, n_out = widths[number - 1 : number + 1]
            stage = Residual(n_in, n_out, 1 + (number > 1)), Residual(n_out, n_out, 1)
            setattr(self, f"layer{number}", nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor) -> Any:
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x))))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class InvertedResidual(nn.Module):
    """The block of MobileNetV2 (arXiv 1801.04381)."""

    def __init__(self, n_in: int, n_out: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = n_in * expand
        self.adds = stride == 1 and n_in == n_out
        self.conv = nn.Sequential(
            nn.Conv2d(n_in, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(inplace=True),
            nn.Conv2d(inner, n_out, 1, bias=False),
            nn.BatchNorm2d(n_out),
        )

    def forward(self, x: Tensor) -> Any:
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rows = ((8, 8, 1, 1), (8, 12, 2, 4), (12, 12, 1, 4), (12, 16, 2, 4))
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
            *(InvertedResidual(*row) for row in rows),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Any:
        return self.classifier(self.features(x).mean([2, 3]))


def _twice(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1),
        nn.BatchNorm2d(n_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(n_out, n_out, 3, padding="same"),
        nn.GroupNorm(2, n_out),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Down, up by transposed convolutions, with skips (arXiv 1505.04597); pixels last."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = _twice(3, 4), _twice(4, 8), _twice(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 8, 2, 2), nn.ConvTranspose2d(8, 4, 2, 2)
        self.join2, self.join1 = _twice(16, 8), _twice(8, 4)
        self.head = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Any:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.up2(self.middle(self.pool(second)))
        x = self.up1(self.join2(torch.cat([second, x], dim=1)))
        x = self.join1(torch.cat([first, x], dim=1))
        return self.head(x).permute(0, 2, 3, 1)
