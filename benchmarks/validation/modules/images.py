"""Networks of images as torchvision has them."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

EXTENTS = {"efficientnet_b4": 380, "efficientnet_v2_s": 300, "inception_v3": 299}
"""Images that are not 224 x 224."""


def image_net(name: str, extent: int = 0) -> tuple[Any, tuple[Any, ...]]:
    """Return a network of torchvision and example inputs; its own dropout, no second head."""
    models = _models()
    extent = extent or EXTENTS.get(name, 224)
    kept = {"aux_logits": False, "init_weights": False} if name in ("inception_v3",) else {}
    return getattr(models, name)(**kept), (torch.zeros(2, 3, extent, extent),)


def _models() -> Any:
    """Return torchvision's models, also where its compiled ops are those of another torch.

    No network here has such an op; their names alone are declared, which its import asks for.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torchvision")
    try:
        from torchvision import models
    except RuntimeError:
        source = Path(found.origin).with_name("_meta_registrations.py").read_text(encoding="utf-8")
        names = re.findall(r'torchvision::(\w+)"', source)
        names += re.findall(r'register_meta\("(\w+)"', source)
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in sorted({*names, "nms"}):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor x) -> Tensor")
        _declared.append(library)
        from torchvision import models
    return models


_declared: list[Any] = []
"""Declarations live as long as their library object."""
