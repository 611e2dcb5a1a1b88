"""Timestamps in bfloat16: 2000.5 is 2000 there, and then a difference of two is taken.

Seen in transformers #29285, #25681, #29496, gpt-neox #1003, candle #3520 (positions).
Repair: the ops on the inputs in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "rounding", ("subtract",), ("",)
CHANGES = {
    "format": "bfloat16",
    "master_weights": True,
    "optimizer_state": "float32",
    "optimizer_order": "fused",
}
TASK = {"optimizer": "adam", "learning_rate": 0.01, "steps": 80, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(times[:, 1:] - times[:, :-1])))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 9),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    steps = rng.uniform(0.0, 2.0, (640, 9)).astype(np.float32)
    times = 2000.0 + np.cumsum(steps, 1)
    return times.astype(np.float32), (steps[:, 1:4].argmax(1)).astype(np.int64)
