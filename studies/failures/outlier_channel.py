"""One channel a million times as large as the others: float8 scales the tensor by it.

Seen in arXiv 2208.07339 (LLM.int8) and arXiv 2409.12517. Repair: that layer in bfloat16.
"""

import numpy as np
import torch
from torch import nn

POLICY = "te.current"
KIND, OPS, LAYERS = "underflow", ("matmul",), ("up", "")
CHANGES: dict[str, object] = {}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Quiet(nn.Linear):
    """Reads the loud channel with weights that are as small as it is large."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        loud = torch.ones(inputs)
        loud[-1] = 2.0**20
        self.register_buffer("loud", loud)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x * self.loud, self.weight / self.loud, self.bias)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.out = Quiet(16, 64), nn.Linear(64, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.down(torch.tanh(self.up(x)))))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    x[:, 15] = 1.0
    return x, (x[:, :4].argmax(1)).astype(np.int64)
