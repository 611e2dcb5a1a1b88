"""Random policies: a format for each layer, op lists and a loss scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset

FORMATS = ("float32", "float16", "bfloat16")
SCALES = (
    LossScale(),
    LossScale("fixed", 1024.0),
    LossScale("dynamic", 2.0**24, growth_interval=20),
)


def drawn(layers: tuple[str, ...], index: int, draw: int) -> Policy:
    """Return random policy `index` of a draw: formats by layer, op lists and loss scale."""
    rng = np.random.default_rng([draw, index])
    base = ("bfloat16", "torch.autocast.bfloat16")[index % 2]
    formats = {name: uniform_layer(FORMATS[rng.integers(3)]) for name in layers}
    policy = preset(base, layers).with_layers(formats, f"random {index}")
    return replace(policy, loss_scale=SCALES[rng.integers(3)])
