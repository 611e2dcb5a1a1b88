"""Gradients in float16 without a loss scale: those below 6e-8 are zero.

arXiv 1710.03740. Repair: a loss scale.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "underflow", (), ()
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
LOSS = "mean_squared_error"
TASK = {
    "optimizer": "adam",
    "learning_rate": 0.003,
    "steps": 80,
    "batch_size": 32,
    "epsilon": 1e-16,
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1e-4 * self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    return x, (1e-4 * np.sin(x[:, :1])).astype(np.float32)
