"""Parameters in bfloat16 without masters: an update below half a unit in the last place is lost.

Seen in pytorch #120376, torchtune #2254, torchao #1124; arXiv 2010.06192.
Repair: float32 master weights, or updates rounded by chance.
"""

import numpy as np
import torch
from torch import nn

POLICY = "bfloat16"
KIND, OPS, LAYERS = "swamped updates", (), ()
CHANGES = {"master_weights": False, "param": "bfloat16"}
TASK = {"optimizer": "adam", "learning_rate": 0.0001, "steps": 300, "batch_size": 32}


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
