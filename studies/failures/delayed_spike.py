"""One spike in a batch: delayed scaling divides by it for its whole history, and all else is zero.

Seen in arXiv 2405.18710 and arXiv 2409.12517; Transformer Engine keeps 1024 steps.
Repair: that layer in bfloat16. Scaled to its own largest only the batch with the spike is lost,
which still costs a little.
"""

import numpy as np
import torch
from torch import nn

POLICY = "te.delayed"
KIND, OPS, LAYERS = "underflow", ("matmul",), ("up", "")
CHANGES: dict[str, object] = {}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.out = nn.Linear(16, 64), nn.Linear(64, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.down(torch.tanh(self.up(x)))))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    label = (x[:, :4].argmax(1)).astype(np.int64)
    x[0] *= 1e6
    return x, label
