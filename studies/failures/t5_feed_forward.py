"""The gated feed-forward of T5 in float16: the product passes 65504, and so does the add behind it.

Seen in transformers #4586, #9295, #20683 (`_keep_in_fp32_modules = ["wo"]`).
Repair: `wo` and the add behind it in float32, together.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("multiply", "matmul", "bias", "add"), ("wo", "")
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.norm, self.out = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)
        self.wi0, self.wi1, self.wo = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = 400.0 * self.emb(x)
        x = x + self.wo(torch.relu(self.wi0(x)) * self.wi1(x))
        return self.out(self.norm(x))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
