"""The op catalogue: every op that a file of this package defines, by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import policysearch.ops
from policysearch.graph import Op

LOSS_FILES = ("loss", "losses")
"""The last word in the name of a file that defines losses and nothing else."""


def _defined() -> Iterator[tuple[str, Op]]:
    """Yield the ops of every file, with its name."""
    for info in pkgutil.iter_modules(policysearch.ops.__path__):
        name = f"{policysearch.ops.__name__}.{info.name}"
        if name != __name__:
            values = vars(importlib.import_module(name)).values()
            yield from ((info.name, op) for op in values if type(op) is Op)


OPS: Mapping[str, Op] = MappingProxyType({op.name: op for _, op in _defined()})

FORWARD_OPS: tuple[str, ...] = tuple(
    op.name for op in OPS.values() if op.gradients and not op.converts and op.name != "scale_loss"
)
"""Ops a model is made of: what the op lists of a policy speak about."""

LOSS_OPS: tuple[str, ...] = tuple(
    dict.fromkeys(
        op.name
        for file, op in _defined()
        if file.rpartition("_")[2] in LOSS_FILES and op.name in FORWARD_OPS
    )
)
"""Those that are losses: in float32 by the lists of every framework."""
