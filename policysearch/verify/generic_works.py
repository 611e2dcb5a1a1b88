"""Kernels of no net in particular, of the sizes that steps on a kind of machine have."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policysearch.cost.timings import Extents, Work
from policysearch.optimizers.optimizer import timed_updates

FLOAT32_OPS = ("softmax", "softmax_grad", "layer_norm", "layer_norm_grad")
"""Ops that low-precision policies keep in float32."""
ELEMENTWISE = ("add", "scale", "relu", "relu_grad", "gelu", "gelu_grad", "bias_grad")
LOSSES = ("softmax_cross_entropy", "softmax_cross_entropy_grad")


@dataclass(frozen=True)
class Sizes:
    """Extents of what is timed, as `Work` has them.

    `sides`: rows, columns and depth of products take each of them; `batches`: of batched products;
    `heads`: of transposes; `passes`: of ops that pass over memory; `updates`: of optimizers.
    """

    sides: tuple[int, ...]
    batches: tuple[Extents, ...]
    heads: tuple[Extents, ...]
    passes: tuple[Extents, ...]
    updates: tuple[Extents, ...]


SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        "cpu": Sizes(
            sides=(16, 64, 256, 1024),
            batches=((64, 16, 16, 16), (64, 32, 32, 64), (64, 64, 16, 64), (64, 128, 128, 32)),
            heads=((16, 16, 4, 16), (16, 32, 4, 64), (64, 64, 8, 64)),
            passes=((8, 32), (64, 64), (128, 512), (1024, 1024)),
            updates=((2, 2**10), (16, 2**16), (16, 2**20), (16, 2**22)),
        ),
        "cuda": Sizes(
            sides=(64, 512, 2048, 8192),
            batches=(
                (64, 64, 64, 64),
                (64, 512, 512, 64),
                (64, 512, 64, 512),
                (64, 1024, 1024, 64),
            ),
            heads=((16, 64, 4, 64), (16, 512, 16, 64), (64, 512, 16, 64)),
            passes=((64, 64), (1024, 1024), (8192, 1024), (8192, 8192)),
            updates=((2, 2**10), (16, 2**20), (16, 2**24), (16, 2**27)),
        ),
    }
)
"""By the kind of place: its smallest kernels are all launch, its largest reach the peak."""


def generic_works(formats: Iterable[str], kind: str) -> tuple[Work, ...]:
    """Return kernels in `formats` of the `SIZES` of a kind of place."""
    sizes = SIZES[kind]
    found = []
    for name in formats:
        for op, extents in itertools.product(
            ("linear", "matmul.nn", "matmul.tn"), itertools.product(sizes.sides, repeat=3)
        ):
            found.append(Work(op, name, (1, *extents)))
        for op in ("matmul.nt", "matmul.nn", "matmul.tn"):
            found += [Work(op, name, extents) for extents in sizes.batches]
        found += [Work("transpose.0213", name, extents) for extents in sizes.heads]
        ops = ELEMENTWISE if name != "float32" else (*ELEMENTWISE, *FLOAT32_OPS, *LOSSES)
        found += [Work(op, name, extents) for op in ops for extents in sizes.passes]
        if name != "float32":
            casts = (f"float32>{name}", f"{name}>float32")
            found += [Work("cast", cast, extents) for cast in casts for extents in sizes.passes]
    updates = timed_updates()
    return (*found, *(Work(op, "float32", extents) for op in updates for extents in sizes.updates))
