"""A dynamic loss scale that starts so high that it never arrives: every step is skipped.

Seen in pytorch #40497, #99640.
Repair: a lower start.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "never leaves skipping", (), ()
CHANGES = {
    "master_weights": True,
    "optimizer_state": "float32",
    "optimizer_order": "fused",
    "loss_scale": {
        "kind": "dynamic",
        "init_scale": 2.0**100,
    },
}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
