"""The training-step graph: typed nodes, and how ops are defined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from policysearch.formats import Rounding

FloatArray = NDArray[np.float32]
Shape = tuple[int, ...]
Attrs = Mapping[str, Any]
Role = Literal["input", "fprop", "dgrad", "wgrad", "update"]
Placement = Literal["low", "fp32", "promote"]
Forward = Callable[[Sequence[FloatArray], Attrs], FloatArray | np.float32]
"""Of the inputs and the attributes: the values of the output, an input or a view of it at times."""
GradientRule = Callable[[Any, "Node", int], int]
"""Of a Builder, the node and the gradient of its output."""


@dataclass(frozen=True)
class Example:
    """Inputs and attributes from which an op's tests are made."""

    inputs: tuple[FloatArray, ...]
    attrs: Attrs = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Op:
    """One operation: everything the builder, emulator, cost model and tests need to know.

    `forward(inputs, attrs)` is what it means, in float32: a pure function of logical arrays that
    lie in storage order (`layout.py`). `gradients` holds one rule per input (None where there is no
    gradient) that emits nodes and returns the id of the gradient of that input. `kind`: "gemm"
    contracts, "move" only relabels or copies, "source" is fed from outside. `placement` is the op
    list it is in by default. `keeps_format`: every output value is an input value or zero.
    `converts`: the op only brings its first input into the node's format. `in_place`: inputs whose
    buffer the output may take. `pinned`: inputs that are read as they are (indices, masks,
    statistics): no policy casts them, and they do not widen a promoted result. `pointwise`: an
    elementwise op of which every output value depends on the input values at its own place alone.
    """

    name: str
    shape: Callable[[Sequence[Shape], Attrs], Shape]
    forward: Forward
    gradients: tuple[GradientRule | None, ...] = ()
    flops: Callable[[Sequence[Shape], Shape, Attrs], int] = lambda inputs, out, attrs: size(out)
    example: Callable[[np.random.Generator], Example] | None = None
    kind: Literal["gemm", "elementwise", "reduce", "move", "source"] = "elementwise"
    placement: Placement = "promote"
    keeps_format: bool = False
    converts: bool = False
    in_place: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()
    pointwise: bool = True


def size(shape: Shape) -> int:
    """Return the number of elements of `shape`."""
    count = 1
    for extent in shape:
        count *= extent
    return count


@dataclass(frozen=True, slots=True)
class Node:
    """One value of the step: the op that makes it, from which nodes, in which format.

    `source` is the name of the forward op a node is or differentiates, by which op lists speak of
    it; `of` is the forward node behind a gradient node, -1 for others. `fused`: it stays in the
    accumulator of the next node. `line`, the user's ("net.py:12"), is no part of the meaning.
    """

    id: int
    op: Op
    inputs: tuple[int, ...]
    shape: Shape
    role: Role
    layer: str = ""
    name: str = ""
    source: str = ""
    of: int = -1
    format: str = "float32"
    accumulator: str = "float32"
    rounding: Rounding = Rounding()
    fused: bool = False
    attrs: tuple[tuple[str, Any], ...] = ()
    line: str = field(default="", compare=False, repr=False)

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.attrs)

    @property
    def deciding(self) -> tuple[int, ...]:
        """The inputs that decide a promoted format: those not pinned, all where all are."""
        free = (i for place, i in enumerate(self.inputs) if place not in self.op.pinned)
        return tuple(free) or self.inputs


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, the named outputs, and which state each update replaces.

    `updates` holds (source node, new value node) pairs: parameters and optimizer state.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, int], ...]
    updates: tuple[tuple[int, int], ...] = ()

    def output(self, name: str) -> Node:
        """Return the node of the output called `name`."""
        return self.nodes[dict(self.outputs)[name]]

    def source(self, name: str) -> Node:
        """Return the source node (input, parameter, state) called `name`."""
        return next(n for n in self.nodes if n.op.kind == "source" and n.name == name)

    def wanting(self, *names: str) -> Graph:
        """Return the graph with only those of its outputs that are in `names`."""
        outputs = tuple((name, i) for name, i in self.outputs if name in names)
        return replace(self, outputs=outputs)

    def needed(self, wanted: set[int]) -> set[int]:
        """Return the ids in `wanted` and those of all nodes that they are computed from."""
        found = set(wanted)
        for node in reversed(self.nodes):
            if node.id in found:
                found.update(node.inputs)
        return found

    def readers(self) -> list[list[Node]]:
        """Return, for each node, the nodes that have it as an input, each once."""
        found: list[list[Node]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for i in set(node.inputs):
                found[i].append(node)
        return found

    def inputs_of(self, node: Node) -> list[Node]:
        return [self.nodes[i] for i in node.inputs]
