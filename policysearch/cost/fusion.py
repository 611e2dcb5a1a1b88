"""Which nodes a stack runs in one kernel, as ordered rules over the node and the kernel's lead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policysearch.cost.stacks import Stack
from policysearch.graph import Node
from policysearch.rewrite.patterns import Wanted, node

PHASES: Mapping[str, int] = MappingProxyType(
    {"input": 0, "fprop": 0, "dgrad": 1, "wgrad": 1, "update": 2}
)
"""By role: kernels of different phases are not fused."""

ACCUMULATOR = "value in an accumulator"
MERGED = "kernel of an update into another"
"""What else brings nodes into one kernel: `Node.fused`, and stacks with a fused optimizer."""


@dataclass(frozen=True)
class Fusion:
    """A node that fits `joins` runs in the kernel of one it reads, called after one that fits
    `lead`, where the stack `allows` it (a field of `Stack`, never where that is empty).

    With `input`, only where it is that input of the node; `unless` the node has that attribute.
    """

    name: str
    lead: Wanted
    joins: Wanted
    allows: str
    input: int | None = None
    unless: str = ""


_GEMM, _ANY = node(kind="gemm"), node()

FUSIONS = (
    Fusion("bias into its product", _GEMM, node(op="bias"), "bias_fusion", 0, "apart"),
    Fusion("cast behind a product", _GEMM, node(op="cast"), "cast_fusion"),
    Fusion("activation into its product", _GEMM, node(kind="elementwise"), "epilogue_fusion"),
    Fusion("else into a product", _GEMM, _ANY, ""),
    Fusion("cast into the op before it", _ANY, node(op="cast"), "cast_fusion"),
    Fusion("op behind a cast", node(op="cast"), _ANY, "cast_fusion"),
    Fusion("op of an update", _ANY, node(role="update"), "fused_optimizer"),
    Fusion("op of a chain", _ANY, _ANY, "elementwise_fusion"),
)
"""The first that fits decides. No product joins, nor does a reduction of an update; what reads a
reduction waits for it."""


class Fusing:
    """The rules of one stack: which of them lets a node join, and how many each has let."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.counts = dict.fromkeys((ACCUMULATOR, *(row.name for row in FUSIONS), MERGED), 0)
        self._known: dict[tuple[object, ...], str] = {}

    def rule(self, joins: Node, place: int, lead: Node) -> str:
        """Return the rule by which a node joins the kernel of its input `place`; "" for none."""
        marks = joins.attrs if joins.op.name == "bias" else ()  # of others no rule reads them
        key = joins.op, marks, joins.role, place, lead.op, lead.role
        if key not in self._known:
            self._known[key] = self._found(joins, place, lead)
        return self._known[key]

    def _found(self, joins: Node, place: int, lead: Node) -> str:
        reduces = joins.op.kind == "reduce" and joins.role == "update"
        if joins.op.kind == "gemm" or reduces or PHASES[joins.role] != PHASES[lead.role]:
            return ""
        row = next(
            row
            for row in FUSIONS
            if row.joins.fits_kind(joins)
            and row.lead.fits_kind(lead)
            and row.input in (None, place)
            and row.unless not in joins.attributes
        )
        return row.name if row.allows and getattr(self.stack, row.allows) else ""
