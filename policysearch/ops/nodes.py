"""Nodes made quickly: a step is rewritten by thousands, and a frozen class is slow to fill."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from policysearch.formats import Rounding
from policysearch.graph import Node, Op, Role, Shape

NEAREST = Rounding()


class _Draft:
    """A node while it is filled in: it has the slots of one, and then becomes one."""

    __slots__ = tuple(field.name for field in fields(Node))


def new_node(
    id: int,
    op: Op,
    inputs: tuple[int, ...],
    shape: Shape,
    role: Role,
    layer: str = "",
    name: str = "",
    source: str = "",
    of: int = -1,
    format: str = "float32",
    accumulator: str = "float32",
    rounding: Rounding = NEAREST,
    fused: bool = False,
    attrs: tuple[tuple[str, Any], ...] = (),
) -> Node:
    """Return `Node` of the same arguments, which takes four times as long."""
    made: Any = _Draft()
    made.id, made.op, made.inputs, made.shape, made.role = id, op, inputs, shape, role
    made.layer, made.name, made.source, made.of, made.format = layer, name, source, of, format
    made.accumulator, made.rounding, made.fused, made.attrs = accumulator, rounding, fused, attrs
    made.__class__ = Node
    return made  # type: ignore[no-any-return]


def changed(node: Node, **others: Any) -> Node:
    """Return a copy with other fields, as `dataclasses.replace` does in six times as long."""
    made: Any = _Draft()
    made.id, made.op, made.inputs, made.shape = node.id, node.op, node.inputs, node.shape
    made.role, made.layer, made.name, made.of = node.role, node.layer, node.name, node.of
    made.source, made.format, made.attrs = node.source, node.format, node.attrs
    made.accumulator, made.rounding, made.fused = node.accumulator, node.rounding, node.fused
    for name, value in others.items():
        setattr(made, name, value)
    made.__class__ = Node
    return made  # type: ignore[no-any-return]
