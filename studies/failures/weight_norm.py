"""Weight normalisation in float16 of a layer with large directions: their squares sum to infinity.

Nothing is NaN: a weight divided by infinity is zero, and the layer gives its bias alone.
`torch.nn.utils.weight_norm`, written out. Repair: squares, sum and root in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("sum", "pow", "multiply"), ("middle",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Normed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.v = nn.Parameter(60.0 * torch.randn(width, width))
        self.g, self.bias = nn.Parameter(torch.ones(width, 1)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.g * self.v / self.v.pow(2).sum(1, keepdim=True).sqrt()
        return nn.functional.linear(x, weight, self.bias)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(16, 32), Normed(32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
