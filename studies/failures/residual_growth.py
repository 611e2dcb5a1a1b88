"""A residual stream in float16 that grows from block to block until it passes 65504.

Seen in transformers #19229 (LongT5). Repair: the late blocks in a wider format.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", (), ("", "blocks.4", "blocks.5", "blocks.3")
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.001, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(16, 32), nn.Linear(32, 4), nn.LayerNorm(32)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        for block in self.blocks:
            nn.init.normal_(block.weight, std=1.6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(torch.relu(x))
        return self.last(self.norm(x))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = (8.0 * rng.standard_normal((640, 16))).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
