"""Networks of images as torchvision has them."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

EXTENTS = {
    "efficientnet_b4": 380,
    "efficientnet_b2": 288,
    "efficientnet_v2_s": 300,
    "inception_v3": 299,
}
"""Images that are not 224 x 224."""


def image_net(name: str, extent: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """Return a network of torchvision and example inputs; its own dropout, no second head."""
    models = _models()
    extent = extent or EXTENTS.get(name, 224)
    two_heads = name in ("inception_v3", "googlenet")
    kept = {"aux_logits": False, "init_weights": False} if two_heads else {}
    return getattr(models, name)(**kept), (torch.zeros(2, 3, extent, extent),)


def _models() -> Any:
    """Return torchvision's models, also where its compiled ops are those of another torch.

    No network here has such an op; their names alone are declared, which its import asks for.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torchvision")
    try:
        return import_module("torchvision.models")
    except RuntimeError:
        source = Path(found.origin).with_name("_meta_registrations.py").read_text(encoding="utf-8")
        names = re.findall(r'torchvision::(\w+)"', source)
        names += re.findall(r'register_meta\("(\w+)"', source)
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in sorted({*names, "nms"}):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor x) -> Tensor")
        _declared.append(library)
        return import_module("torchvision.models")


_declared: list[Any] = []
"""Declarations live as long as their library object."""


class _Squeezed(nn.Module):
    """A residual block whose last norm is scaled by what its channels' means tell."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        width = block.conv3.out_channels
        self.block = block
        self.down, self.up = nn.Conv2d(width, width // 16, 1), nn.Conv2d(width // 16, width, 1)

    def forward(self, x: Any) -> Any:
        b = self.block
        inner = b.relu(b.bn1(b.conv1(x)))
        inner = b.bn3(b.conv3(b.relu(b.bn2(b.conv2(inner)))))
        means = inner.mean((2, 3), keepdim=True)
        scaled = inner * torch.sigmoid(self.up(b.relu(self.down(means))))
        return b.relu(scaled + (x if b.downsample is None else b.downsample(x)))


def se_resnext(depth: int) -> tuple[Any, tuple[Any, ...]]:
    """Return SE-ResNeXt 32x4d and example inputs (Hu et al., 2017)."""
    blocks = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth]
    resnet = import_module(f"{_models().__name__}.resnet")
    net = resnet.ResNet(resnet.Bottleneck, list(blocks), groups=32, width_per_group=4)
    for name in ("layer1", "layer2", "layer3", "layer4"):
        setattr(net, name, nn.Sequential(*(_Squeezed(b) for b in getattr(net, name))))
    return net, (torch.zeros(2, 3, 224, 224),)
