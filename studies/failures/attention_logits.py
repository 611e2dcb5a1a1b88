"""Attention in float16 that scales after the product: q k^T passes 65504 before it is divided.

Megatron's query scaling; transformers #17433, #17437. Repair: the scores in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("matmul",), ("",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.emb(x)
        scores = (self.q(h) * 512.0) @ (self.k(h) * 512.0).transpose(1, 2)
        return self.out((torch.softmax(scores / 2.0**20, -1) @ self.v(h)).mean(1))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 6, 8),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 6, 8)).astype(np.float32)
    return x, ((x.mean((1, 2)) > 0) * 2 + (x[:, :, 0].mean(1) > 0)).astype(np.int64)
