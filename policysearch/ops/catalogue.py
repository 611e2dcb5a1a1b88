"""The op catalogue: every op that a file of this package defines, by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import policysearch.ops
from policysearch.graph import Op


def _defined_ops(end: str = "") -> Iterator[Op]:
    """Yield the ops of the files whose names end so."""
    for info in pkgutil.iter_modules(policysearch.ops.__path__):
        name = f"{policysearch.ops.__name__}.{info.name}"
        if name != __name__ and name.endswith(end):
            yield from (op for op in vars(importlib.import_module(name)).values() if type(op) is Op)


OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in _defined_ops()})

UNLISTED = ("scale_loss", "divide_loss", "flash_attention")
"""What no op list names: what the trainer does to the loss, and a call listed as its products are.
"""

FORWARD_OPS: tuple[str, ...] = tuple(
    op.name for op in OPS.values() if op.gradients and not op.converts and op.name not in UNLISTED
)
"""Ops a model is made of: what the op lists of a policy speak about."""

LOSS_OPS: tuple[str, ...] = tuple(
    op.name for end in ("loss", "losses") for op in _defined_ops(end) if op.name in FORWARD_OPS
)
"""Those of the files that end so: float32 in every preset, and in every exported file."""
