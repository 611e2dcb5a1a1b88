"""Nodes made quickly: a step is rewritten by thousands, and a frozen class is slow to fill."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from policysearch.graph import Node, Op

BLANK = Node(-1, Op("", lambda shapes, attrs: (), lambda *_: lambda: None), (), (), "fprop")
"""What the fields of a node are unless told; its op is none."""


class _Draft:
    """A node while it is filled in: it has the slots of one, and then becomes one."""

    __slots__ = tuple(field.name for field in fields(Node))


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
