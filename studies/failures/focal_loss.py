"""A focal loss in float16: the 1e-8 inside its logarithm is zero there, and so is a probability.

It fails late, when the net has become sure of one batch. Epsilons below 6e-8: pytorch #40497.
Repair: the logarithm and the sum inside it in float32, or `log_softmax`.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "born", ("log",), ("",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
LOSS, LABELS = "own", "y"
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = nn.functional.gelu(self.middle(nn.functional.gelu(self.first(x))))
        p = torch.softmax(6.0 * self.head(h), -1)
        return -(y * (1 - p) ** 2 * torch.log(p + 1e-8)).sum(-1).mean()


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16), torch.zeros(4, 4))


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = (3.0 * rng.standard_normal((640, 16))).astype(np.float32)
    return x, np.eye(4, dtype=np.float32)[x[:, :4].argmax(1)]
