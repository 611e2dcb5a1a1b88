"""A mask of -1e9 in float16: it is -infinity there, and a row of padding only gives NaN.

Seen in transformers #17306, #17437 and #18057, NeMo Automodel #2658.
Repair: the mask's arithmetic and the softmax in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "overflow", ("scale", "multiply", "subtract", "add", "shift"), ("",)
CHANGES = {"master_weights": True, "optimizer_state": "float32", "optimizer_order": "fused"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.emb(x)
        hidden = ((1.0 - mask[:, None, :]) * -1e9).expand(-1, x.shape[1], -1)
        scores = self.q(h) @ self.k(h).transpose(1, 2) / 4.0 + hidden
        return self.out((torch.softmax(scores, -1) @ self.v(h)).mean(1))


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Net(), (torch.zeros(4, 6, 8), torch.ones(4, 6))


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 6, 8)).astype(np.float32)
    mask = (rng.random((640, 6)) > 0.3).astype(np.float32)
    mask[::5] = 0.0
    label = (x.mean((1, 2)) > 0) * 2 + (x[:, :, 0].mean(1) > 0)
    return x, mask, label.astype(np.int64)
