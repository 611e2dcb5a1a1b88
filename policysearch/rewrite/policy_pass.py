"""The policy pass: from a float32 step and a policy to a graph where every cast is a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from policysearch.formats import Rounding, format_named
from policysearch.graph import Graph, Node, Role
from policysearch.ops.builder import Builder, without_unread
from policysearch.ops.source import cast
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.rewrite.boundaries import Boundaries
from policysearch.rewrite.norm_pass import with_inner_formats
from policysearch.rewrite.scaling_pass import Operand, ScalingPass, is_narrow
from policysearch.rewrite.update_pass import UpdatePass
from policysearch.rounding.inclusion import join
from policysearch.values import InputError


def apply_policy(graph: Graph, policy: Policy) -> Graph:
    """Return `graph` with a format on every node and a cast wherever formats meet.

    Forward nodes follow the op list their op is in; gradient nodes follow the list of the op
    they differentiate. Raises InputError where an op is in no list or a layer has no formats.
    """
    made = without_unread(_Pass(graph, policy).run())
    return with_inner_formats(made) if policy.norm_inner == "format" else made


class _Pass:
    """One application: the new nodes, where each old node went, and the casts made so far."""

    def __init__(self, graph: Graph, policy: Policy) -> None:
        self.graph = graph
        self.policy = policy
        self.layers = dict(policy.layers)
        self.lists = {
            **dict.fromkeys(policy.low_precision_ops, "low"),
            **dict.fromkeys(policy.fp32_ops, "fp32"),
            **dict.fromkeys(policy.promote_ops, "promote"),
        }
        self.b = Builder()
        self.new: dict[int, int] = {}
        self.casts: dict[tuple[int, str], int] = {}
        self.forward_formats: dict[int, str] = {}
        self.gradient_formats: dict[int, str] = {}
        self.parameter_formats: dict[int, str] = {}
        self.readers = graph.readers()
        self.replaced_by = {new: old for old, new in graph.updates}
        self.stored: dict[int, int] = {}
        self.boundaries = Boundaries(graph, policy, lambda node: self.placement(node) == "low")
        self.updating = UpdatePass(self.b, policy)
        self.scaling = ScalingPass(self.b, policy.scaling, trains=bool(graph.updates))

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if node.op.kind == "source":
                self.new[node.id] = self.source(node)
            elif node.role == "fprop":
                self.new[node.id] = self.forward(node)
            elif node.role == "update":
                self.new[node.id] = self.update(node)
            else:
                self.new[node.id] = self.gradient(node)
        outputs = {name: self.new[i] for name, i in self.graph.outputs if i in self.new}
        if self.policy.loss_scale.kind == "none":
            outputs.pop("finite", None)
        kept = {**self.new, **self.stored}
        updates = [(kept[old], kept[new]) for old, new in self.graph.updates]
        updates += self.scaling.updates()
        return self.b.graph({**outputs, **self.scaling.outputs}, updates)

    def source(self, node: Node) -> int:
        stored = "float32"
        if node.op.name == "parameter" and not self.policy.master_weights:
            stored = self.layer(node).param
        elif node.op.name == "state":
            stored = self.policy.optimizer_state
        self.gradient_formats[node.id] = stored
        return self.b.copy(node, (), format=stored)

    def forward(self, node: Node) -> int:
        mixed = self.boundaries.find_mixed(node, lambda i: self.b.nodes[self.new[i]].format)
        placement = "promote" if mixed else self.placement(node)
        if node.op.name == "bias" and placement == "low":
            made = self.bias(node)
        elif placement == "low":
            layer = self.layer(node)
            if node.op.kind == "gemm":
                fused = self.policy.bias == "fused" and self.feeds_only_bias(node)
                made = self.product(node, "float32" if fused else layer.output, fused=fused)
            else:
                made = self.emit(node, self.operands(node, layer.output), layer.output)
        else:
            given = {"fp32": "float32", "pinned": node.attributes.get("format")}
            wanted = given.get(placement) or self.widest(node)
            made = self.emit(node, self.operands(node, wanted), wanted)
        self.forward_formats[node.id] = self.b.nodes[made].format
        self.gradient_formats[node.id] = self.gradient_format(node, placement)
        # parameters that a promoted op pins have their gradients in their own format
        owned = (i for i in node.inputs if self.graph.nodes[i].op.name == "parameter")
        self.parameter_formats[node.id] = (
            self.layer(node).wgrad if mixed else self.gradients_widest((*node.deciding, *owned))
        )
        return made

    def gradient_format(self, node: Node, placement: str) -> str:
        """Return the format in which the gradient of a forward node's value arrives.

        Autograd hands an op its gradient in the format of the op's own output; a layer's `dgrad`
        stands for that format, so that a policy can have other gradients than outputs.
        """
        if placement == "pinned":
            return str(node.attributes["format"])
        if placement == "low":
            return self.layer(node).dgrad
        if placement == "fp32":
            return "float32"
        if node.id in self.boundaries.mixed:
            return _widest(self.boundaries.arriving(node, self.gradient_formats))
        return self.gradients_widest(node.deciding)

    def gradients_widest(self, ids: Iterable[int]) -> str:
        return _widest(self.gradient_formats[i] for i in ids)

    def bias(self, node: Node) -> int:
        """The bias takes the output format; the sum is rounded once where it is fused."""
        layer = self.layer(node)
        x, offset = node.inputs
        summed = "float32" if self.policy.bias == "fp32" else layer.output
        fused = self.b.nodes[self.new[x]].fused
        left = self.new[x] if fused else self.operand(x, summed, node)
        return self.emit(node, [left, self.operand(offset, summed, node)], summed)

    def gradient(self, node: Node) -> int:
        if "gradient_of" in node.attributes:
            # the gradients of a value are summed in the value's own format
            flowing = self.boundaries.sum_format(node.of) or self.gradient_formats[node.of]
            return self.emit(node, [self.operand(i, flowing, node) for i in node.inputs], flowing)
        placement = "promote" if node.of in self.boundaries.mixed else self.placement(node)
        if placement == "low":
            return self.low_gradient(node)
        if placement == "fp32":
            return self.emit(node, self.operands(node, "float32"))
        produced, flowing = self.forward_formats[node.of], self.gradient_formats[node.of]
        # what the forward op read is read again, in the format it was read in
        inputs = self.operands(node, produced, flowing)
        stored = self.parameter_formats[node.of] if node.role == "wgrad" else flowing
        return self.emit(node, inputs, stored)

    def low_gradient(self, node: Node) -> int:
        layer = self.layer(node)
        stored = layer.wgrad if node.role == "wgrad" else layer.dgrad
        if node.op.kind == "gemm":
            return self.product(node, stored)
        return self.emit(node, self.operands(node, layer.output, layer.dgrad), stored)

    def product(self, node: Node, stored: str, *, fused: bool = False) -> int:
        operands = [self.product_operand(position, node) for position in range(len(node.inputs))]
        return self.scaling.product(
            node,
            operands,
            format=stored,
            fused=fused,
            accumulator=self.layer(node).accumulator,
            rounding=self.rounding(node.role),
        )

    def product_operand(self, position: int, node: Node) -> Operand:
        """Return an operand in its format: scaled where that is narrow and there is a recipe."""
        i, layer = node.inputs[position], self.layer(node)
        old, wanted = self.graph.nodes[i], layer.compute
        if self.is_gradient(i):
            made, wanted, name = self.operand(i, layer.dgrad, node), layer.grad, "grad"
        else:
            # the scaled copy of a parameter is what is stored in its narrow `param` format
            same = old.op.name == "parameter" and layer.param == wanted and is_narrow(wanted)
            made, name = self.new[i] if same else self.read(i, node), "input"
        if self.policy.scaling.recipe == "none" or not is_narrow(wanted):
            return Operand(self.cast(made, wanted, node))
        name = old.name if old.op.name == "parameter" else f"{node.layer}.{name}"
        rounding = self.rounding(node.role)
        return self.scaling.operand(made, wanted, node, position, name, rounding)

    def update(self, node: Node) -> int:
        """Emit an update; the new value of a state is rounded to the format it is stored in."""
        kept = self.replaced_by.get(node.id)
        stored = None if kept is None else self.b.nodes[self.new[kept]].format
        rate = self.updating.rate_format(node, stored)
        inputs = [
            self.operand(i, rate, node)
            if self.graph.nodes[i].name == "learning_rate"
            else self.reduced(i, node)
            for i in node.inputs
        ]
        if node.op.name == "unscale" and self.policy.loss_scale.kind == "none":
            return inputs[0]
        if stored is None or self.updating.eager or not self.readers[node.id]:
            return self.updating.emit(node, inputs, stored)
        made = self.updating.emit(node, inputs, "float32")
        self.stored[node.id] = self.cast(made, stored, node)
        return made

    def reduced(self, i: int, node: Node) -> int:
        """Return old node `i` in float32; a gradient first passes the all-reduce format."""
        made = self.new[i]
        if self.graph.nodes[i].role in ("dgrad", "wgrad") and self.policy.all_reduce != "float32":
            made = self.cast(made, self.policy.all_reduce, node)
        return self.cast(made, "float32", node)

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
        value = self.b.nodes[made]
        if value.format == wanted or (wanted == "float32" and value.fused):
            return made
        if (made, wanted) not in self.casts:
            self.casts[made, wanted] = self.b.emit(
                cast,
                made,
                format=wanted,
                role=node.role,
                layer=node.layer,
                source=node.source,
                rounding=self.cast_rounding(wanted, node.role),
            )
        return self.casts[made, wanted]

    def emit(self, node: Node, inputs: Sequence[int], stored: str = "float32") -> int:
        return self.b.copy(node, inputs, format=stored, rounding=self.rounding(node.role))

    def rounding(self, role: Role) -> Rounding:
        found: Rounding = getattr(self.policy.rounding, "fprop" if role == "input" else role)
        return found

    def cast_rounding(self, wanted: str, role: Role) -> Rounding:
        """Casts to narrow formats saturate where the policy scales tensors into them."""
        saturates = self.policy.scaling.recipe != "none" and is_narrow(wanted)
        found = self.rounding(role)
        return replace(found, overflow="saturate") if saturates else found

    def placement(self, node: Node) -> str:
        if node.source == "scale_loss":
            return "fp32"
        if node.source == "pinned_cast":
            return "pinned"
        if node.source not in self.lists:
            raise InputError(
                f"policy {self.policy.name!r}: op {node.source!r} of layer {node.layer!r} is in "
                "no list; expected it in low_precision_ops, fp32_ops or promote_ops"
            )
        return self.lists[node.source]

    def layer(self, node: Node) -> LayerPolicy:
        return (
            self.layers[node.layer] if node.layer in self.layers else self.policy.layer(node.layer)
        )

    def widest(self, node: Node) -> str:
        mixed = node.id in self.boundaries.mixed
        read = (self.read(i, node) if mixed else self.new[i] for i in node.deciding)
        return _widest(self.b.nodes[i].format for i in read)

    def is_gradient(self, i: int) -> bool:
        node = self.graph.nodes[i]
        return node.role in ("dgrad", "wgrad") or node.name == "loss_scale"

    def feeds_only_bias(self, node: Node) -> bool:
        readers = self.readers[node.id]
        if len(readers) != 1 or readers[0].op.name != "bias":
            return False
        return self.placement(readers[0]) == "low"


def _widest(names: Iterable[str]) -> str:
    formats = {format_named(name) for name in names}
    return join(formats).name if len(formats) > 1 else formats.pop().name
