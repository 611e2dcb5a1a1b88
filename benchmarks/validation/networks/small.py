"""Nets without a publication, measured by `benchmarks/live_memory.py`."""

from __future__ import annotations

from benchmarks.validation.layers.convolutions import classifier
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images
from benchmarks.validation.networks.plain import activated


def _mlp(step: Layers, batch: int) -> None:
    """Eight layers of 4096 with ReLU, and 1000 classes."""
    classifier(step, batch, (4096,) * 9 + (1000,), dropout=False)


def _convnet(step: Layers, batch: int) -> None:
    """Six convolutions of 3 on 32 x 32 images, a pool behind every second, and two products."""
    side, c_in = 32, 3
    for width in (64, 128, 256):
        for _ in range(2):
            activated(step, batch, c_in, width, (side, side), 3)
            c_in = width
        step.pool(batch * width * side**2, batch * width * side**2 // 4)
        side //= 2
    classifier(step, batch, (4096, 512, 10), dropout=False)


NETWORKS: dict[str, Network] = {
    "mlp-8x4096": Network("mlp-8x4096", "mlp", images(_mlp)),
    "convnet-32": Network("convnet-32", "convnet", images(_convnet)),
}
