"""A loss summed over a batch of 128 in float16: it passes 65504.

Seen in espnet #3237, pytorch #40497. Repair: the loss in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("sum", "multiply"), ("",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
LOSS, LABELS = "own", "y"
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 80, "batch_size": 128}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        off = self.last(torch.tanh(self.first(x))) - y
        return (off * off).sum()


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16), torch.zeros(4, 1))


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1280, 16)).astype(np.float32)
    return x, (40.0 * np.sin(x[:, :1])).astype(np.float32)
