"""Where and in which order the values of a graph are computed: buffers reused, groups in spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel
from policysearch.emulator.kernels.registry import kernel_of
from policysearch.emulator.nodes import inner_attributes
from policysearch.formats import format_named
from policysearch.graph import Graph, Node, Shape, size
from policysearch.layout import LINE, leading_axis
from policysearch.rounding.grid import KEY_SPAN, SPAN
from policysearch.rounding.inclusion import contains


def needs_rounding(graph: Graph, node: Node) -> bool:
    """Return whether the values of `node` can lie off its format's grid before rounding."""
    if node.format == "float32":
        return False
    kept = node.op.keeps_format or node.op.name == "cast"
    if not kept or node.rounding.overflow != "inf" or node.rounding.subnormals != "keep":
        return True
    target = format_named(node.format)
    read = [graph.nodes[i] for i in node.deciding]
    values = [i for i in read if i.shape != () or node.shape == ()] or read
    return not all(contains(target, format_named(i.format)) for i in values)


def is_view(graph: Graph, node: Node) -> bool:
    """Return whether the node's values are its input's, bit for bit, in the same order."""
    if node.op.name == "cast":
        return not needs_rounding(graph, node)
    reordered = {len(node.shape), len(graph.nodes[node.inputs[0]].shape)} & {2, 4}
    return node.op.name == "reshape" and not reordered and not needs_rounding(graph, node)


def is_rounded_in_spans(node: Node) -> bool:
    """Return whether its values can be rounded a span at a time; draws go by the whole value."""
    return node.rounding.mode != "stochastic" or size(node.shape) <= KEY_SPAN


def runs_in_spans(graph: Graph, node: Node) -> bool:
    """Return whether the node can run on some rows of its storage at a time.

    That is an elementwise op whose inputs have the shape of its output or are broadcast over it.
    """
    if node.op.kind != "elementwise" or not node.op.pointwise:
        return False
    if not size(node.shape) or not node.shape or not is_rounded_in_spans(node):
        return False
    return all(i.shape == node.shape or len(i.shape) < 2 for i in graph.inputs_of(node))


def rows_per_span(shape: Shape) -> int:
    """Return how many rows along the leading stored axis make a span: at least one."""
    return max(1, SPAN * shape[leading_axis(shape)] // max(1, size(shape)))


def spans(shape: Shape) -> Iterator[slice]:
    """Yield where the spans of a tensor are in its flat buffer: whole rows, the first first."""
    rows = shape[leading_axis(shape)]
    step, row = rows_per_span(shape), size(shape) // rows
    for first in range(0, rows, step):
        yield slice(first * row, min(first + step, rows) * row)


def rows_of(shape: Shape, span: slice) -> tuple[slice, ...]:
    """Return where the elements of a span (see `spans`) are in the logical array."""
    axis = leading_axis(shape)
    row = size(shape) // shape[axis]
    return (*(slice(None),) * axis, slice(span.start // row, span.stop // row))


@dataclass
class Buffer:
    """A stretch of the arena, alive from position `first` to `last` in the order of execution."""

    elements: int
    first: int
    last: int
    offset: int = 0


class Plan:
    """The order of execution, its groups, and which buffer each node's value is in.

    All that the outputs need comes first, then (from position `split`) what else the update needs.
    `groups` holds (start, stop) positions: nodes of one group run span by span, so their
    buffers are all alive throughout the group. `kernels` holds how every node runs: with `kernels`
    in C where there is such a one. `beside` maps a node to the next one, whose values its
    kernel computes as well; `given` are those. `span_work` holds the elements of scratch of nodes
    that run span by span: they have it outside the arena, with the roundings.
    """

    def __init__(self, graph: Graph, *, kernels: bool = True) -> None:
        self.graph = graph
        self.readers = graph.readers()
        early = graph.needed({i for _, i in graph.outputs})
        late = graph.needed({new for _, new in graph.updates}) - early
        first = self._promptly(early)
        self.order = first + self._promptly(late)
        self.split = len(first)
        self.groups = self._groups()
        self.kernels = {node.id: self._kernel(node, kernels) for node in self.order}
        self.beside = dict(self._beside())
        self.given = frozenset(self.beside.values())
        self.last_read = self._last_reads()
        self.home: dict[int, Buffer] = {}
        self.work: dict[int, Buffer] = {}
        self.span_work: dict[int, int] = {}
        self.in_source: dict[int, int] = {}
        self._replaced: dict[int, list[int]] = {}
        for old, new in graph.updates:
            self._replaced.setdefault(new, []).append(old)
        self.buffers: list[Buffer] = []
        for position, node in enumerate(self.order):
            self._place(position, node)
        # In a group every node is at some span at any time, so what begins or ends in it lives
        # throughout.
        group = {at: bounds for bounds in self.groups for at in range(*bounds)}
        for buffer in self.buffers:
            buffer.first, _ = group.get(buffer.first, (buffer.first, 0))
            _, stop = group.get(buffer.last, (0, buffer.last + 1))
            buffer.last = stop - 1
        self.elements = assign_offsets(self.buffers)

    def _promptly(self, chosen: set[int]) -> list[Node]:
        """Return the computed ones of the nodes in `chosen`, in an order to run them in.

        Elementwise update nodes (a gradient's cast, the step it is for) come right behind their
        inputs.
        """
        nodes = [n for n in self.graph.nodes if n.id in chosen and n.op.kind != "source"]
        after: dict[int, int] = {}  # the id that each is ordered by, ties in the order of the graph
        for node in nodes:
            moves = node.role == "update" and runs_in_spans(self.graph, node)
            after[node.id] = max(after.get(i, -1) for i in node.inputs) if moves else node.id
        return sorted(nodes, key=lambda node: (after[node.id], node.id))

    def _groups(self) -> list[tuple[int, int]]:
        # Neighbours of one shape: a span of each is computed while that of the one before is in the
        # cache. The update begins a group of its own, as the finite check decides whether it runs.
        groups: list[tuple[int, int]] = []
        for position, node in enumerate(self.order):
            if not runs_in_spans(self.graph, node):
                continue
            if groups and groups[-1][1] == position and position != self.split:
                start = groups[-1][0]
                if self.order[start].shape == node.shape:
                    groups[-1] = (start, position + 1)
                    continue
            groups.append((position, position + 1))
        return groups

    def _kernel(self, node: Node, in_c: bool) -> Kernel:
        """Return how the node runs: chosen for all of it, even where it then runs on spans."""
        shapes = [i.shape for i in self.graph.inputs_of(node)]
        in_c = in_c and node.accumulator == "float32"
        return kernel_of(node.op, shapes, node.shape, inner_attributes(node), in_c=in_c)

    def _beside(self) -> Iterator[tuple[int, int]]:
        for lead, node in pairwise(self.order):
            same = lead.inputs[: len(node.inputs)] == node.inputs
            if same and self.kernels[lead.id].beside == node.op.name:
                yield lead.id, node.id

    def _last_reads(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for position, node in enumerate(self.order):
            last[node.id] = position
            for i in node.inputs:
                last[i] = position
        for i in [i for _, i in self.graph.outputs] + [new for _, new in self.graph.updates]:
            last[i] = len(self.order)
        return last

    def _place(self, position: int, node: Node) -> None:
        last = self.last_read[node.id]
        scratch = self._scratch(node)
        if scratch and runs_in_spans(self.graph, node):
            self.span_work[node.id] = scratch
        elif scratch:
            self.work[node.id] = Buffer(scratch, position, position)
            self.buffers.append(self.work[node.id])
        shared = self._source_to_update(position, node)
        if shared is not None:
            self.in_source[node.id] = shared
            return
        for candidate in self._reusable(node):
            buffer = self.home[
                candidate
            ]  # a view shares it; another may take it from its last reader
            if is_view(self.graph, node) or buffer.last == position:
                buffer.last = max(buffer.last, last)
                self.home[node.id] = buffer
                return
        first = position - (node.id in self.given)
        self.home[node.id] = Buffer(size(node.shape), first, last)
        self.buffers.append(self.home[node.id])

    def _scratch(self, node: Node) -> int:
        if node.id in self.given:
            return 0
        shapes, shape = [i.shape for i in self.graph.inputs_of(node)], node.shape
        if runs_in_spans(self.graph, node):
            axis = leading_axis(shape)
            rows = min(rows_per_span(shape), shape[axis])
            span = (*shape[:axis], rows, *shape[axis + 1 :])
            shapes, shape = [span if s == shape else s for s in shapes], span
        return self.kernels[node.id].work(shapes, shape, node.attributes)

    def _source_to_update(self, position: int, node: Node) -> int | None:
        """Return the source whose array this new value may overwrite: nothing reads it later."""
        for old in self._replaced.get(node.id, ()):
            if old in node.inputs and self.last_read[old] == position:
                place = node.inputs.index(old)
                return old if place in node.op.in_place else None
        return None

    def _reusable(self, node: Node) -> list[int]:
        if is_view(self.graph, node):
            return [i for i in node.inputs[:1] if i in self.home]
        inputs = [node.inputs[place] for place in node.op.in_place if place < len(node.inputs)]
        once = [i for i in inputs if node.inputs.count(i) == 1 and i in self.home]
        return [i for i in once if self.graph.nodes[i].shape == node.shape]


def assign_offsets(buffers: list[Buffer]) -> int:
    """Give buffers alive at the same time different stretches; return the arena's elements.

    Largest first, each at the lowest offset that is free for its whole life (Pisarchyk and Lee,
    arXiv 2001.03288, "greedy by size").
    """
    placed = np.empty((4, len(buffers)), np.int64)  # first, last, offset, end; by offset
    for count, buffer in enumerate(sorted(buffers, key=lambda b: -b.elements)):
        first, last, starts, ends = placed[:, :count]
        taken = np.flatnonzero((first <= buffer.last) & (buffer.first <= last))
        free = np.maximum.accumulate(ends[taken])  # from here on, up to the next start
        fits = free[:-1] + buffer.elements <= starts[taken[1:]]
        if not len(taken) or buffer.elements <= starts[taken[0]]:
            buffer.offset = 0
        else:
            buffer.offset = int(free[fits.argmax() if fits.any() else -1])
        at = int(np.searchsorted(starts, buffer.offset))
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        end = buffer.offset + -(-buffer.elements // LINE) * LINE
        placed[:, at] = buffer.first, buffer.last, buffer.offset, end
    return max((b.offset + b.elements for b in buffers), default=0)


@dataclass(frozen=True)
class FusedUpdate:
    """A velocity and the step it is for; `rounded` is the gradient that is rounded on the way."""

    velocity: Node
    step: Node
    rounded: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.velocity, self.step, *((self.rounded,) if self.rounded else ()))


def fused_update(plan: Plan, unrounded: Node | None, members: Sequence[Node]) -> FusedUpdate | None:
    """Return the float32 update in place that is among the `members` of a group, if one is.

    `unrounded` waits to be rounded before the group: that can be done on the way if it is the
    gradient and nothing else reads it.
    """
    for step in members:
        if step.op.name != "sgd_step" or step.format != "float32":
            continue
        velocity = plan.graph.nodes[step.inputs[1]]
        if velocity.op.name != "sgd_velocity" or velocity not in members:
            continue
        if "momentum" not in velocity.attributes:
            continue  # it is fed
        if plan.readers[velocity.id][0] is not step:
            continue  # who reads it before the step would find it not yet computed
        if velocity.format == "float32" and {velocity.id, step.id} <= plan.in_source.keys():
            alone = unrounded is not None and _is_gradient(plan, unrounded, velocity)
            return FusedUpdate(velocity, step, unrounded if alone else None)
    return None


def _is_gradient(plan: Plan, unrounded: Node, velocity: Node) -> bool:
    grad = plan.graph.nodes[velocity.inputs[1]]
    outputs = {i for _, i in plan.graph.outputs}
    while len(plan.readers[grad.id]) == 1 and grad.id not in outputs:
        if grad is unrounded:
            return grad.rounding.mode == "nearest_even"
        if not (grad.inputs and is_view(plan.graph, grad)):
            break
        grad = plan.graph.nodes[grad.inputs[0]]
    return False
