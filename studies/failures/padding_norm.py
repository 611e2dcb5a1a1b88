"""`normalize` in float16 of a row of padding: its epsilon, 1e-12, is zero there, and 0/0 is NaN.

Its gradient is divided by the epsilon too, so that the layer before it overflows as soon as the
norm is wide. Repair: the norm, its division and that layer in float32, together.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "born", ("divide", "clamp"), ("",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32, bias=False), nn.Linear(32, 4)
        self.middle = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.normalize(self.first(x), dim=-1)
        return self.last(torch.relu(self.middle(5.6 * x)))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.ones(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    label = (x[:, :4].argmax(1)).astype(np.int64)
    x[::7] = 0.0
    return x, label
