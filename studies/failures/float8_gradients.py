"""Gradients in float8_e4m3fn without a scale: those below 2^-10 are zero.

arXiv 2209.05433. Repair: a loss scale, or tensors scaled to their own largest.
"""

import numpy as np
import torch
from torch import nn

POLICY = "bfloat16"
KIND, OPS, LAYERS = "underflow", (), ()
CHANGES = {"grad": "float8_e4m3fn"}
TASK = {"optimizer": "adam", "learning_rate": 0.003, "steps": 60, "batch_size": 128}


def net() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)]
    return nn.Sequential(*layers), (torch.zeros(4, 16),)


def data() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2560, 16)).astype(np.float32)
    return x, (x[:, :4].argmax(1)).astype(np.int64)
