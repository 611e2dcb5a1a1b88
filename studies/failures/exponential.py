"""A softmax written out in float16: exp(11.1) is 65504.

Why `exp` is in autocast's float32 list. Repair: exp, sum and division in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("exp", "sum"), ("",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.value, self.out = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        odds = torch.exp(12.0 + self.first(x))
        return self.out(odds / odds.sum(-1, keepdim=True) * self.value(x) * 8.0)


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
