"""Data as a user's scripts have it: drawn with noise, as an augmentation has it."""

from __future__ import annotations

from typing import Any

import torch


class Rows(torch.utils.data.Dataset[Any]):
    """Points, with noise drawn anew whenever one is read, and the largest of three as its class."""

    def __init__(self, count: int = 96) -> None:
        self.x = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        x = self.x[index] + 0.1 * torch.randn(6)
        return {"x": x, "label": int(self.x[index, :3].argmax())}
