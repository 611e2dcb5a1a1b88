"""A step that is rebuilt under a policy: its new nodes, and casts wherever formats meet.

Some policies cast what every op reads, others what crosses the boundary of a layer (`Boundaries`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from policysearch.formats import Rounding, format_named
from policysearch.graph import Graph, Node, Role
from policysearch.ops.builder import Builder
from policysearch.ops.source import LOSS_SCALE, cast, is_whole
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.products import is_narrow
from policysearch.rewrite.kept_state import with_kept_state
from policysearch.rewrite.scaling_pass import ScalingPass
from policysearch.rewrite.update_pass import UpdatePass
from policysearch.rounding.inclusion import join
from policysearch.values import InputError


class Boundaries:
    """Casts at the boundaries of layers, as MindSpore's graph mode makes them.

    A layer with a `low` op casts what comes in from outside. What a layer inside it gives stays as
    it is, so that an op of the outer layer may read two formats: it runs in the wider one, and so
    does what follows it there (ran in MindSpore 2.10; `tests/record_mindspore.py`). `mixed` holds
    these forward nodes by id. Gradients take the same way back, and those of a value that one layer
    reads in several places are summed inside it. Where the policy casts at every op, nothing is
    cast here.
    """

    def __init__(self, graph: Graph, policy: Policy, low: Callable[[Node], bool]) -> None:
        self.graph, self.layers, self.low = graph, dict(policy.layers), low
        self.casts = policy.casts
        self.mixed: set[int] = set()
        self.readers: list[list[Node]] = []
        self.casting: set[str] = set()
        if self.casts == "layer":
            self.readers = graph.readers()
            forward = (n for n in graph.nodes if n.role == "fprop" and n.layer in self.layers)
            self.casting = {node.layer for node in forward if low(node)}

    def find_mixed(self, node: Node, format_of: Callable[[int], str]) -> bool:
        """Return whether a forward node reads another format than its layer's from inside it."""
        if self.casts == "op" or not self.low(node):
            return False
        own = self.layers[node.layer].output if node.layer in self.layers else ""
        if any(self._stays(i, node) and format_of(i) != own for i in deciding(self.graph, node)):
            self.mixed.add(node.id)
        return node.id in self.mixed

    def _stays(self, i: int, reader: Node) -> bool:
        """Return whether a forward value is read as it is: it is mixed, or a low layer's inside."""
        value = self.graph.nodes[i]
        if not _holds(reader.layer, value):
            return False
        return i in self.mixed or (value.layer != reader.layer and self.low(value))

    def arriving(self, node: Node, formats: Mapping[int, str]) -> list[str]:
        """Return, for what a mixed node reads, in which of these `formats` gradients arrive."""
        own, nodes = self.layers[node.layer].dgrad, self.graph.nodes
        return [
            formats[i] if _holds(node.layer, nodes[i]) else own for i in deciding(self.graph, node)
        ]

    def casts_between(self, i: int, reader: Node) -> Iterable[str]:
        """Return the formats that old node `i` is cast to before `reader` has it, in order."""
        if self.casts == "op" or reader.role == "update":
            return ()
        value = self.graph.nodes[i]
        gradient = value.role in ("dgrad", "wgrad")
        return self._on_leaving(value, reader) if gradient else self._on_entering(value, reader)

    def _on_entering(self, value: Node, reader: Node) -> Iterator[str]:
        if is_whole(value):
            return
        # a parameter is no input of a layer: its own layer casts it, to the `param` format
        if value.op.name != "parameter":
            for name in self._around(reader.layer):
                if not _holds(name, value):
                    yield self.layers[name].output
        mixes = (reader.id if reader.role == "fprop" else reader.of) in self.mixed
        if mixes and not _holds(reader.layer, value):
            yield self.layers[reader.layer].output

    def _on_leaving(self, value: Node, reader: Node) -> Iterator[str]:
        """Yield the formats of what a gradient leaves, from inside out."""
        # The casts of the way in, backwards: a mixed op has cast its operands last, so that its
        # gradient is cast first, then each layer that it leaves, to the `dgrad` of that layer.
        home, target = self._home(value), self._home(reader)
        if value.of in self.mixed and home != target and not _inside(target, home):
            yield self.layers[home].dgrad
        for name in reversed(list(self._around(home))):
            if not _inside(target, name):
                yield self.layers[name].dgrad

    def summed_in(self, i: int) -> str | None:
        """Return the layer in which the gradients of a forward value are summed, if not its own.

        That is the innermost one with formats that all of its readers are in and it is not.
        """
        value = self.graph.nodes[i]
        # A value that enters a layer is cast once and read there in several places. The gradient
        # of that cast is one, so that what the places give is summed before it, in the layer.
        homes = [node.layer for node in self.readers[i] if node.role == "fprop"]
        for name in reversed([*self._around(homes[0]), homes[0]]):
            if name in self.casting and all(_inside(home, name) for home in homes):
                return None if _holds(name, value) else name
        return None

    def sum_format(self, i: int) -> str | None:
        """Return the format of such a sum, None where it is the value's own."""
        name = None if self.casts == "op" else self.summed_in(i)
        return None if name is None else self.layers[name].dgrad

    def _home(self, node: Node) -> str:
        """Return the layer of a gradient; that of a sum is where it is summed."""
        origin = node.attributes.get("gradient_of")
        return (self.summed_in(node.of) or origin[0]) if origin else node.layer

    def _around(self, layer: str) -> Iterator[str]:
        """Yield the layers that hold this one, the outermost first."""
        parts = layer.split(".") if layer else []
        for end in range(len(parts)):
            name = ".".join(parts[:end])
            if name in self.casting:
                yield name


def deciding(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the inputs that decide a promoted format.

    Whole numbers do not, nor do values without axes beside those with some, as in torch.
    """
    # torch.result_type: a tensor of no axes takes part only where no other has any
    floats = tuple(i for i in node.deciding if not is_whole(graph.nodes[i])) or node.deciding
    return tuple(i for i in floats if graph.nodes[i].shape) or floats


def _inside(layer: str, outer: str) -> bool:
    return layer == outer or not outer or layer.startswith(f"{outer}.")


def _holds(layer: str, value: Node) -> bool:
    return value.op.kind != "source" and _inside(value.layer, layer)


class Casting:
    """What the rules of the policy pass work on.

    `b` collects the new nodes, `new` says what each old node became, `stored` the same for values
    of which another format is kept. `forward_formats` are those of forward values by old id,
    `gradient_formats` those in which their gradients arrive; `formats_before`
    are those that a user's own casts leave, by the numbers of these.
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
        self.formats_before: dict[int, str] = {}
        self.readers = graph.readers()
        self.replaced_by = {new: old for old, new in graph.updates}
        low = frozenset(policy.low_precision_ops)
        self.boundaries = Boundaries(graph, policy, lambda node: node.source in low)
        self.updating = UpdatePass(self.b, policy)
        self.scaling = ScalingPass(self.b, trains=bool(graph.updates))
        self.scales = policy.recipes != ("none",)
        self._casts: dict[tuple[int, str], int] = {}

    def finished(self) -> Graph:
        """Return the new graph: outputs, updates and the states that scaling keeps."""
        outputs = {name: self.new[i] for name, i in self.graph.outputs if i in self.new}
        if self.policy.loss_scale.kind == "none":
            outputs.pop("finite", None)
        states = {**self.new, **self.stored}
        updates = [(states[old], states[new]) for old, new in self.graph.updates]
        updates += self.scaling.updates()
        whole = self.b.graph({**outputs, **self.scaling.outputs}, updates)
        return with_kept_state(whole, self.policy)

    def forward(self, node: Node, new: int, gradient: str) -> int:
        """Note that a forward node became `new` and has its gradient in a format; return it.

        Autograd hands an op its gradient in the format of the op's own output; a layer's `dgrad`
        stands for that format, so that a policy can have other gradients than outputs.
        """
        self.forward_formats[node.id] = self.format(new)
        self.gradient_formats[node.id] = gradient
        return new

    def emit(self, node: Node, inputs: Sequence[int], stored: str = "float32") -> int:
        """Emit what computes as `node` does, on new inputs, and round it to a format."""
        return self.b.copy(node, inputs, format=stored, rounding=self.rounding(node.role))

    def operands(self, node: Node, wanted: str, flowing: str = "") -> list[int]:
        """Return the inputs in format `wanted`, gradients in `flowing`, pinned ones as they are."""
        formats = (flowing if flowing and self.is_gradient(i) else wanted for i in node.inputs)
        return [
            self.read(i, node) if place in node.op.pinned else self.operand(i, fmt, node)
            for place, (i, fmt) in enumerate(zip(node.inputs, formats, strict=True))
        ]

    def operand(self, i: int, wanted: str, node: Node) -> int:
        """Return old node `i` in format `wanted`."""
        return self.cast(self.read(i, node), wanted, node)

    def read(self, i: int, node: Node) -> int:
        """Return old node `i` as it is read: parameters in their `param` format."""
        value, source = self.new[i], self.graph.nodes[i]
        if source.op.name == "parameter" and source.layer in self.layers:
            value = self.cast(value, self.layers[source.layer].param, node)
        for wanted in self.boundaries.casts_between(i, node):
            value = self.cast(value, wanted, node)
        return value

    def cast(self, new: int, wanted: str, node: Node, rounding: Rounding | None = None) -> int:
        """Return new node `new` in format `wanted`, as `node` reads it."""
        value = self.b.nodes[new]
        # what is fused is never stored: who reads it has it in the accumulator, which is float32
        if value.format == wanted or (wanted == "float32" and value.fused):
            return new
        # one cast for all who read the value in this format: it is computed and priced once
        if (new, wanted) not in self._casts:
            self._casts[new, wanted] = self.b.emit(
                cast,
                new,
                format=wanted,
                role=node.role,
                layer=node.layer,
                source=node.source,
                rounding=rounding or self._cast_rounding(wanted, node.role),
            )
        return self._casts[new, wanted]

    def rounding(self, role: Role) -> Rounding:
        """Return how results of nodes of a role are rounded."""
        rounding: Rounding = getattr(self.policy.rounding, "fprop" if role == "input" else role)
        return rounding

    def _cast_rounding(self, wanted: str, role: Role) -> Rounding:
        """Casts to narrow formats saturate where the policy scales tensors into them."""
        rounding = self.rounding(role)
        if role == "update" and self.policy.gradient_storage == "param":
            return Rounding()  # Of a gradient: what an update stores says its own.
        return (
            replace(rounding, overflow="saturate")
            if self.scales and is_narrow(wanted)
            else rounding
        )

    def layer(self, node: Node) -> LayerPolicy:
        """Return the formats of a node's layer; InputError where the policy has none."""
        if node.layer in self.layers:
            return self.layers[node.layer]
        try:
            return self.policy.layer(node.layer)
        except InputError as error:  # the loss is in none, so that only its op can be moved
            op = node.source or node.op.name
            raise InputError(f"{error}; without it {op!r} has to be in fp32_ops") from None

    def format(self, new: int) -> str:
        """Return the format of a new node."""
        return self.b.nodes[new].format

    def gradients_widest(self, ids: Iterable[int]) -> str:
        """Return the widest format in which gradients of old nodes arrive."""
        return widest(self.gradient_formats[i] for i in ids)

    def is_gradient(self, i: int) -> bool:
        """Return whether old node `i` is a gradient, or the loss scale, where gradients begin."""
        node = self.graph.nodes[i]
        return node.role in ("dgrad", "wgrad") or node.name == LOSS_SCALE


def widest(names: Iterable[str]) -> str:
    """Return the name of the narrowest format that holds all values of these."""
    return _joint_format(frozenset(names))


@lru_cache(maxsize=1024)
def _joint_format(names: frozenset[str]) -> str:
    formats = {format_named(name) for name in names}
    return join(formats).name if len(formats) > 1 else formats.pop().name
