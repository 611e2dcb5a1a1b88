"""Nets and per-layer policies whose training steps are timed, to judge their prices by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.nn.models import mlp, transformer
from policysearch.optimizers.optimizer import OptimizerKind
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset

LOW = "torch.autocast.bfloat16"
"""What the layers in low precision take, and the op lists of every policy."""

POLICIES = 46


@dataclass(frozen=True)
class Subject:
    """A net whose steps are timed, its optimizer and batch size.

    `small`: its step fits into the cache that `Clock` evicts.
    """

    build: Callable[[], Model]
    optimizer: OptimizerKind
    batch_size: int
    small: bool


SMALL = Subject(lambda: mlp((128, *(256,) * 5, 10)), "momentum", batch_size=64, small=True)

SUBJECTS: Mapping[str, Mapping[str, Subject]] = MappingProxyType(
    {
        "cpu": MappingProxyType(
            {
                "wide MLP": Subject(
                    lambda: mlp((512, *(1024,) * 6, 10)), "momentum", batch_size=128, small=False
                ),
                "transformer": Subject(
                    lambda: transformer((32, 64), 10, 256, (1024, 1024)), "adamw", 16, small=False
                ),
                "small MLP": SMALL,
            }
        ),
        "cuda": MappingProxyType(
            {
                "wide MLP": Subject(
                    lambda: mlp((1024, *(4096,) * 6, 16)), "momentum", batch_size=4096, small=False
                ),
                "transformer": Subject(
                    lambda: transformer((512, 64), 16, 1024, (4096,) * 3, heads=16),
                    "adamw",
                    16,
                    small=False,
                ),
                "small MLP": SMALL,
            }
        ),
    }
)
"""By the kind of place: two nets whose steps keep it busy and one that leaves it idle."""


def product_layers(graph: Graph) -> tuple[str, ...]:
    """Return the layers that multiply matrices, in their order."""
    products = (n for n in graph.nodes if n.op.kind == "gemm" and n.role == "fprop")
    return tuple(dict.fromkeys(node.layer for node in products))


def low_layers(
    layers: Sequence[str], count: int, rng: np.random.Generator
) -> tuple[frozenset[str], ...]:
    """Return `count` different sets of layers in low precision.

    All, single ones, all but one, alternating and blocked ones of about half, then random ones.
    """
    found = dict.fromkeys(frozenset(given) for given in _systematic(layers))
    most = min(count, 2 ** len(layers) - 1)
    while len(found) < most:
        share = rng.choice((0.25, 0.5, 0.75))
        drawn = frozenset(layer for layer in layers if rng.random() < share)
        if drawn:
            found[drawn] = None
    return tuple(found)[:most]


def _systematic(layers: Sequence[str]) -> Iterator[Sequence[str]]:
    half, quarter = len(layers) // 2, len(layers) // 4
    yield layers
    yield from ([layer] for layer in layers)
    yield from ([x for x in layers if x != layer] for layer in layers if len(layers) > 1)
    yield layers[::2]
    yield layers[1::2]
    for first in (0, quarter, len(layers) - half):
        yield layers[first : first + half] or layers


def policy_of(low: frozenset[str], layers: Sequence[str], model: Model) -> Policy:
    """Return the policy that has the layers `low` in bfloat16 and the other products in float32."""
    wide = {layer: uniform_layer("float32") for layer in layers if layer not in low}
    return preset(LOW, model.layer_names).with_layers(wide)
