"""A variance as E[x^2] - E[x]^2 in bfloat16: where the mean is large it is below zero.

A norm written out meets it. The difference of two near numbers keeps none of bfloat16's eight
bits, and its square root is NaN: two nodes before the first NaN lies the cause.
Repair: the norm (`multiply`, `mean` and `subtract`, or its layer) in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "bfloat16"
KIND, OPS, LAYERS = "rounding", ("subtract",), ("norm",)
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Norm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) / torch.sqrt(variance + 1e-3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = Norm(), nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(self.norm(x))))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((640, 16)) + 30.0).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
