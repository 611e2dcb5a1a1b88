"""An RMS norm written out, in float16: x^2 of an x above 256 passes 65504.

Seen in transformers #9295 and #10956; T5LayerNorm and LlamaRMSNorm cast to float32 since.
Repair: the norm (`multiply` and `mean`, or its layer) in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("multiply", "pow", "square", "power"), ("norm",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), Norm(32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = (400.0 * rng.standard_normal((640, 16))).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
