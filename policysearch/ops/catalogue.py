"""The op catalogue: every op that a file of this package defines, by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import policysearch.ops
from policysearch.graph import Op


def _defined() -> Iterator[Op]:
    for info in pkgutil.iter_modules(policysearch.ops.__path__):
        name = f"{policysearch.ops.__name__}.{info.name}"
        if name != __name__:
            yield from (op for op in vars(importlib.import_module(name)).values() if type(op) is Op)


OPS: Mapping[str, Op] = MappingProxyType({op.name: op for op in _defined()})

FORWARD_OPS: tuple[str, ...] = tuple(
    op.name for op in OPS.values() if op.gradients and not op.converts and op.name != "scale_loss"
)
"""Ops a model is made of: what the op lists of a policy speak about."""
