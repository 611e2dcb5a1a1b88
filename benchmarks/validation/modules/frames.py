"""Speech networks over frames in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

JASPER = ((256, 11), (384, 13), (512, 17), (640, 21), (768, 25))
"""Width and taps of the blocks, each twice (Li et al., 2019)."""


def unit(c_in: int, c_out: int, taps: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with its norm."""
    convolution = nn.Conv1d(c_in, c_out, taps, stride, taps // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm1d(c_out))


def ended(layer: nn.Module) -> nn.Sequential:
    """Return a layer with ReLU and dropout behind it."""
    return nn.Sequential(layer, nn.ReLU(), nn.Dropout(0.2))


class Jasper(nn.Module):
    """Jasper 10 x 5 with dense residuals: a block reads the sum of what all before it told."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ended(unit(64, 256, 11, 2))
        blocks, beside, starts = [], [], [256]
        for width, taps in (row for row in JASPER for _ in range(2)):
            inner = [ended(unit(starts[-1] if i == 0 else width, width, taps)) for i in range(4)]
            blocks.append(nn.Sequential(*inner, unit(width, width, taps)))
            beside.append(nn.ModuleList(unit(start, width, 1) for start in starts))
            starts.append(width)
        self.blocks, self.beside = nn.ModuleList(blocks), nn.ModuleList(beside)
        self.end = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Dropout(0.2)) for _ in blocks)
        self.last = nn.Sequential(
            ended(unit(768, 896, 29)), ended(unit(896, 1024, 1)), nn.Conv1d(1024, 29, 1)
        )

    def forward(self, x: Any) -> Any:
        told = [self.first(x)]
        for block, beside, end in zip(self.blocks, self.beside, self.end, strict=True):
            total = block(told[-1])
            for layer, earlier in zip(beside, told, strict=True):
                total = total + layer(earlier)
            told.append(end(total))
        return self.last(told[-1]).transpose(1, 2)


def jasper(length: int) -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: frames of 64 features."""
    return Jasper(), (torch.zeros(2, 64, length),)
