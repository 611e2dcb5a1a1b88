"""Adam's second moment and epsilon in float16: both are zero, and the step is 0/0.

Seen in apex #240, pytorch #8860, optax #1754, chainer #6299. Repair: the state in float32.
"""

import numpy as np
import torch
from torch import nn

POLICY = "apex.O3"
KIND, OPS, LAYERS = "state", (), ()
CHANGES = {"optimizer_state": "float16", "optimizer_order": "eager", "optimizer_scalars": "storage"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 32}


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((640, 16)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
