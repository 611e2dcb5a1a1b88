"""The op catalogue: every op defined in this package, by name."""

from __future__ import annotations

from policysearch.graph import Op
from policysearch.ops import (
    attention,
    block_scale,
    conv,
    dense,
    eager_update,
    elementwise,
    gelu,
    layer_norm,
    loss,
    pool,
    scale,
    shape,
    source,
    transpose,
    update,
)

FAMILIES = (
    *(source, elementwise, dense, conv, pool, shape, loss, update, eager_update),
    *(gelu, transpose, layer_norm, attention),
    *(scale, block_scale),
)

OPS: dict[str, Op] = {
    op.name: op for family in FAMILIES for op in vars(family).values() if isinstance(op, Op)
}

FORWARD_OPS: tuple[str, ...] = tuple(
    op.name for op in OPS.values() if op.gradients and op.name not in ("cast", "scale_loss")
)
"""Ops a model is made of: what the op lists of a policy speak about."""
