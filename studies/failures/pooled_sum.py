"""A mean over an image written as a sum and a division, in float16: the sum passes 65504.

Two failures at once: the division makes the gradients behind it so small that they vanish.
Repair: the sum and the division in float32, and a loss scale.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("sum",), ("",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.out = nn.Conv2d(1, 8, 3), nn.Linear(8, 24), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.conv(x))
        return self.out(torch.relu(self.fc(h.sum((2, 3)) / 900.0 / 60.0)))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 1, 32, 32),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=320)
    x = 60.0 + 120.0 * rng.random((320, 1, 32, 32))
    x[label == 1, :, ::2] *= 0.3
    x[label == 2, :, :, ::2] *= 0.3
    return x.astype(np.float32), label.astype(np.int64)
