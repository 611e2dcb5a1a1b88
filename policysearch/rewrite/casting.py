"""A step that is rebuilt under a policy: its new nodes, and casts wherever formats meet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from policysearch.formats import Rounding, format_named
from policysearch.graph import Graph, Node, Role
from policysearch.ops.builder import Builder
from policysearch.ops.source import cast
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.rewrite.boundaries import Boundaries
from policysearch.rewrite.scaling_pass import ScalingPass, is_narrow
from policysearch.rewrite.update_pass import UpdatePass
from policysearch.rounding.inclusion import join
from policysearch.values import InputError


class Casting:
    """What the rules of the policy pass work on.

    `b` collects the new nodes, `new` says what each old node became, `stored` the same for values
    of which another format is kept. `forward_formats` are those of forward values by old id,
    `gradient_formats` those in which their gradients arrive; `left` are those
    that a user's own casts leave, by their numbers.
    """

    def __init__(self, graph: Graph, policy: Policy) -> None:
        self.graph = graph
        self.policy = policy
        self.layers = dict(policy.layers)
        self.b = Builder()
        self.new: dict[int, int] = {}
        self.stored: dict[int, int] = {}
        self.forward_formats: dict[int, str] = {}
        self.gradient_formats: dict[int, str] = {}
        self.left: dict[int, str] = {}
        self.readers = graph.readers()
        self.replaced_by = {new: old for old, new in graph.updates}
        low = frozenset(policy.low_precision_ops)
        self.boundaries = Boundaries(graph, policy, lambda node: node.source in low)
        self.updating = UpdatePass(self.b, policy)
        self.scaling = ScalingPass(self.b, policy.scaling, trains=bool(graph.updates))
        self.scales = policy.scaling.recipe != "none"
        self._casts: dict[tuple[int, str], int] = {}

    def finished(self) -> Graph:
        """Return the new graph: outputs, updates and the states that scaling keeps."""
        outputs = {name: self.new[i] for name, i in self.graph.outputs if i in self.new}
        if self.policy.loss_scale.kind == "none":
            outputs.pop("finite", None)
        kept = {**self.new, **self.stored}
        updates = [(kept[old], kept[new]) for old, new in self.graph.updates]
        updates += self.scaling.updates()
        return self.b.graph({**outputs, **self.scaling.outputs}, updates)

    def forward(self, node: Node, made: int, gradient: str) -> int:
        """Note that a forward node became `made` and has its gradient in a format; return it.

        Autograd hands an op its gradient in the format of the op's own output; a layer's `dgrad`
        stands for that format, so that a policy can have other gradients than outputs.
        """
        self.forward_formats[node.id] = self.format(made)
        self.gradient_formats[node.id] = gradient
        return made

    def emit(self, node: Node, inputs: Sequence[int], stored: str = "float32") -> int:
        """Emit what computes as `node` does, on new inputs, and round it to a format."""
        return self.b.copy(node, inputs, format=stored, rounding=self.rounding(node.role))

    def operands(self, node: Node, wanted: str, flowing: str = "") -> list[int]:
        """Return the inputs in format `wanted`, gradients in `flowing`, pinned ones as they are."""
        formats = (flowing if flowing and self.is_gradient(i) else wanted for i in node.inputs)
        return [
            self.read(i, node) if place in node.op.pinned else self.operand(i, given, node)
            for place, (i, given) in enumerate(zip(node.inputs, formats, strict=True))
        ]

    def operand(self, i: int, wanted: str, node: Node) -> int:
        """Return old node `i` in format `wanted`."""
        return self.cast(self.read(i, node), wanted, node)

    def read(self, i: int, node: Node) -> int:
        """Return old node `i` as it is read: parameters in their `param` format."""
        made, old = self.new[i], self.graph.nodes[i]
        if old.op.name == "parameter" and old.layer in self.layers:
            made = self.cast(made, self.layers[old.layer].param, node)
        for wanted in self.boundaries.crossed(i, node):
            made = self.cast(made, wanted, node)
        return made

    def cast(self, made: int, wanted: str, node: Node) -> int:
        """Return new node `made` in format `wanted`, as `node` reads it."""
        value = self.b.nodes[made]
        if value.format == wanted or (wanted == "float32" and value.fused):
            return made
        if (made, wanted) not in self._casts:
            self._casts[made, wanted] = self.b.emit(
                cast,
                made,
                format=wanted,
                role=node.role,
                layer=node.layer,
                source=node.source,
                rounding=self._cast_rounding(wanted, node.role),
            )
        return self._casts[made, wanted]

    def rounding(self, role: Role) -> Rounding:
        """Return how results of nodes of a role are rounded."""
        found: Rounding = getattr(self.policy.rounding, "fprop" if role == "input" else role)
        return found

    def _cast_rounding(self, wanted: str, role: Role) -> Rounding:
        """Casts to narrow formats saturate where the policy scales tensors into them."""
        found = self.rounding(role)
        return replace(found, overflow="saturate") if self.scales and is_narrow(wanted) else found

    def layer(self, node: Node) -> LayerPolicy:
        """Return the formats of a node's layer; InputError where the policy has none."""
        if node.layer in self.layers:
            return self.layers[node.layer]
        try:
            return self.policy.layer(node.layer)
        except InputError as error:  # the loss is in none, so that only its op can be moved
            op = node.source or node.op.name
            raise InputError(f"{error}; without it {op!r} has to be in fp32_ops") from None

    def format(self, made: int) -> str:
        """Return the format of a new node."""
        return self.b.nodes[made].format

    def gradients_widest(self, ids: Iterable[int]) -> str:
        """Return the widest format in which gradients of old nodes arrive."""
        return widest(self.gradient_formats[i] for i in ids)

    def is_gradient(self, i: int) -> bool:
        """Return whether old node `i` is a gradient, or the loss scale, where gradients begin."""
        node = self.graph.nodes[i]
        return node.role in ("dgrad", "wgrad") or node.name == "loss_scale"


def widest(names: Iterable[str]) -> str:
    """Return the name of the narrowest format that holds all values of these."""
    return _joined(frozenset(names))


@lru_cache(maxsize=1024)
def _joined(names: frozenset[str]) -> str:
    formats = {format_named(name) for name in names}
    return join(formats).name if len(formats) > 1 else formats.pop().name
