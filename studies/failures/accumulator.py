"""Sums in float16: once the sum is 512, what adds less than a quarter is lost.

Seen in arXiv 1710.03740, section 3.3, and arXiv 2412.19437, section 3.3.2, with the 14 bits of
Hopper's float8. Repair: products that sum in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "rounding", ("matmul",), ("count",)
CHANGES = {
    "master_weights": True,
    "optimizer_state": "float32",
    "optimizer_order": "fused",
    "accumulator": "float16",
}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}
FIRST, WORDS = 520, 1024


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.out = nn.Linear(WORDS, 2, bias=False), nn.Linear(2, 2)
        nn.init.ones_(self.count.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out((self.count(x) - 570.0) / 20.0)


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, WORDS),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=640)
    x = np.ones((640, WORDS), np.float32)
    x[:, FIRST:] = 0.06 + 0.08 * label[:, None] + 0.02 * rng.random((640, WORDS - FIRST))
    return x, label.astype(np.int64)
