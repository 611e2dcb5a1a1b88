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


class WaveGlow(nn.Module):
    """WaveGlow: twelve flows of eight dilated convolutions of 512 (Prenger et al., 2018)."""

    def __init__(self, flows: int = 12, layers: int = 8, width: int = 512) -> None:
        super().__init__()
        self.flows, self.layers = flows, layers
        self.upsampled = nn.ConvTranspose1d(80, 80, 1024, 256)
        sides = [8 - 2 * (flow // 4) for flow in range(flows)]
        self.sides = sides
        self.mixed = nn.ModuleList(nn.Conv1d(side, side, 1, bias=False) for side in sides)
        self.start = nn.ModuleList(nn.Conv1d(side // 2, width, 1) for side in sides)
        self.told = nn.ModuleList(nn.Conv1d(640, 2 * width * layers, 1) for _ in range(flows))
        self.inner, self.kept = nn.ModuleList(), nn.ModuleList()
        for _ in range(flows):
            for layer in range(layers):
                far = 2**layer
                self.inner.append(nn.Conv1d(width, 2 * width, 3, padding=far, dilation=far))
                self.kept.append(nn.Conv1d(width, 2 * width if layer < layers - 1 else width, 1))
        self.end = nn.ModuleList(nn.Conv1d(width, side, 1) for side in sides)

    def forward(self, frames: Any, sound: Any) -> Any:
        told = self.upsampled(frames)[:, :, : 8 * sound.shape[2]]
        told = told.unflatten(2, (-1, 8)).transpose(2, 3).flatten(1, 2)
        x, total, width = sound, 0.0, self.start[0].out_channels
        for flow, side in enumerate(self.sides):
            x = self.mixed[flow](x[:, :side])
            first, second = x[:, : side // 2], x[:, side // 2 :]
            inner, output = self.start[flow](first), 0.0
            near = self.told[flow](told)
            for layer in range(self.layers):
                place = flow * self.layers + layer
                both = self.inner[place](inner)
                both = both + near[:, 2 * width * layer : 2 * width * (layer + 1)]
                gated = torch.tanh(both[:, :width]) * torch.sigmoid(both[:, width:])
                kept = self.kept[place](gated)
                if layer < self.layers - 1:
                    inner = inner + kept[:, :width]
                    kept = kept[:, width:]
                output = output + kept
            scale = self.end[flow](output)
            second = torch.exp(scale[:, side // 2 :]) * second + scale[:, : side // 2]
            total = total + second.square().mean() - scale.mean()
            x = torch.cat([first, second], 1)
        return total


def waveglow() -> tuple[nn.Module, tuple[Any, ...]]:
    """Return the net and example inputs: frames and 8,000 samples in groups of eight."""
    return WaveGlow(), (torch.zeros(2, 80, 32), torch.zeros(2, 8, 1000))
