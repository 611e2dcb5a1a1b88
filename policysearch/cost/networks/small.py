"""Nets without a publication, measured by `benchmarks/gpu_memory.py`."""

from __future__ import annotations

from itertools import pairwise

from policysearch.cost.convolutions import convolution, update
from policysearch.cost.layers import Layers
from policysearch.cost.networks.network import Network, images


def _mlp(step: Layers, batch: int) -> None:
    """Eight layers of 4096 with ReLU, and 1000 classes."""
    for n_in, n_out in pairwise((4096,) * 9 + (1000,)):
        step.linear(batch, n_in, n_out)
        if n_out == n_in:
            step.relu(batch * n_out)
    step.cross_entropy(batch * 1000)
    update(step, "sgd")


def _convnet(step: Layers, batch: int) -> None:
    """Six convolutions of 3 on 32 x 32 images, a pool behind every second, and two products."""
    side, c_in = 32, 3
    for width in (64, 128, 256):
        for _ in range(2):
            convolution(step, batch, c_in, width, (side, side), 3, first=c_in == 3, bias=True)
            step.relu(batch * width * side**2)
            c_in = width
        step.pool(batch * width * side**2, batch * width * side**2 // 4)
        side //= 2
    step.linear(batch, 4096, 512)
    step.relu(batch * 512)
    step.linear(batch, 512, 10)
    step.cross_entropy(batch * 10)
    update(step, "sgd")


NETWORKS: dict[str, Network] = {
    "mlp-8x4096": Network("mlp-8x4096", "mlp", images(_mlp)),
    "convnet-32": Network("convnet-32", "convnet", images(_convnet)),
}
