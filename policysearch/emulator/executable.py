"""The fast emulator: a graph compiled to a list of calls over planned, reused buffers.

Values live in float32 containers that hold only numbers of their node's format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from policysearch.emulator.arena import Arena
from policysearch.emulator.kernels import sgd
from policysearch.emulator.node_rounding import NodeRounding
from policysearch.emulator.nodes import Observer, attributes, source_array
from policysearch.emulator.plan import (
    FusedUpdate,
    Plan,
    fused_update,
    is_rounded_in_spans,
    is_view,
    needs_rounding,
    rows_of,
    spans,
)
from policysearch.graph import FloatArray, Graph, Node, size
from policysearch.layout import stored
from policysearch.rounding.rounder import Fast

Run = Callable[[], object]


class Executable:
    """A compiled step: write the sources in `arrays`, run, read outputs.

    `arrays` maps source names to logical float32 arrays that stay in place for ever; `value`
    gives the array of an output, valid until the next run.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        seed: int,
        fast: Fast,
        sources: Mapping[str, FloatArray],
        observer: Observer | None,
        arena: Arena | None = None,
    ) -> None:
        self.graph = graph
        self.step_index = 0
        self.fast = fast
        self._rounding = NodeRounding(seed, fast, observer)
        self._plan = plan = Plan(graph, kernels=fast == "c")
        self._arena = (arena or Arena()).stretch(plan.elements)
        self._flat: dict[int, FloatArray] = {}
        checked = (node for node in graph.nodes if node.op.name == "all_finite")
        self._square_sums: dict[int, list[FloatArray]] = {
            i: [] for node in checked for i in node.inputs
        }
        self.arrays: dict[str, FloatArray] = {}
        for node in graph.nodes:
            if node.op.kind == "source":
                self.arrays[node.name] = source_array(node, sources)
                self._flat[node.id] = self.arrays[node.name].ravel(order="K")
        for node in plan.order:
            self._flat[node.id] = self._buffer(node)
        self._forward_backward = list(self._runs(0, plan.split))
        self._update = list(self._runs(plan.split, len(plan.order)))
        for old, new in graph.updates:
            if new not in plan.in_source:
                self._update.append(partial(np.copyto, self._flat[old], self._flat[new]))

    @property
    def arena_bytes(self) -> int:
        """Bytes of all values that are not sources, at their reused places."""
        return self._arena.nbytes

    def forward_backward(self) -> None:
        """Run all that the outputs need: forward, loss, and backward as far as they wait for it."""
        self._rounding.step = self.step_index
        with np.errstate(all="ignore"):
            for run in self._forward_backward:
                run()
        self.step_index += 1

    def apply_updates(self) -> None:
        """Finish the step of the last `forward_backward`: new parameters and optimizer state."""
        with np.errstate(all="ignore"):
            for run in self._update:
                run()

    def value(self, name: str) -> FloatArray:
        """Return the array of the output called `name`."""
        node = self.graph.output(name)
        return stored(self._flat[node.id], node.shape)

    def _buffer(self, node: Node) -> FloatArray:
        if node.id in self._plan.in_source:
            return self._flat[self._plan.in_source[node.id]]
        buffer = self._plan.home[node.id]
        return self._arena[buffer.offset : buffer.offset + size(node.shape)]

    def _runs(self, start: int, stop: int) -> Iterator[Run]:
        """Yield the calls of the nodes in positions [start, stop), groups span by span.

        The rounding of a value that cannot be computed in spans joins the group after it.
        """
        groups = dict(self._plan.groups)
        position, waiting = start, None
        while position < stop:
            node = self._plan.order[position]
            if position in groups:
                members = self._plan.order[position : groups[position]]
                if waiting and (waiting.shape != node.shape or not is_rounded_in_spans(waiting)):
                    yield from self._spans(waiting, [])
                    waiting = None
                yield from self._spans(waiting, members)
                position, waiting = groups[position], None
                continue
            if waiting is not None:
                yield from self._spans(waiting, [])
            yield self._whole(node)
            waiting = node if needs_rounding(self.graph, node) else None
            position += 1
        if waiting is not None:
            yield from self._spans(waiting, [])

    def _whole(self, node: Node) -> Run:
        inputs = [stored(self._flat[i], self.graph.nodes[i].shape) for i in node.inputs]
        out = stored(self._flat[node.id], node.shape)
        if is_view(self.graph, node) and np.shares_memory(out, inputs[0]):
            return _nothing
        if node.id in self._plan.given:
            return _nothing
        kernel, seen = self._plan.kernels[node.id], self._rounding.observer
        attrs = attributes(self.graph, node, self.fast, seen)
        if node.id in self._plan.beside:
            attrs["beside"] = self._flat[self._plan.beside[node.id]]
        run = kernel.bind(inputs, out, attrs, self._work(node))
        return self._finite(node, run) if node.op.name == "all_finite" else run

    def _finite(self, node: Node, every_element: Run) -> Run:
        """Return the finite check by the sums of squares that the spans of its inputs left.

        Where one is not finite, or there are none, it looks at `every_element`.
        """
        if not all(self._square_sums[i] for i in node.inputs):
            return every_element
        sums, out = (
            [part for i in node.inputs for part in self._square_sums[i]],
            self._flat[node.id],
        )

        def run() -> None:
            if math.isfinite(sum(map(float, sums))):
                out.fill(1.0)
            else:
                every_element()

        return run

    def _work(self, node: Node) -> FloatArray:
        if node.id in self._plan.span_work:
            return self._rounding.work(self._plan.span_work[node.id])
        scratch = self._plan.work.get(node.id)
        if scratch is None:
            return self._flat[node.id]
        return self._arena[scratch.offset : scratch.offset + scratch.elements]

    def _spans(self, unrounded: Node | None, members: Sequence[Node]) -> Iterator[Run]:
        """Yield, span after span, the rounding of `unrounded` and then every member.

        Casts and the update in one pass touch every array once, so on their own they need no
        spans.
        """
        node = members[0] if members else unrounded
        assert node is not None
        fused = self._fused_update(unrounded, members)
        together = fused.nodes if fused else ()
        apart = [node for node in (unrounded, *members) if node and node not in together]
        whole = not members or all(each.op.name == "cast" for each in apart)
        everything = slice(0, size(node.shape))
        for flat in [everything] if whole else spans(node.shape):
            if unrounded in apart and unrounded is not None:
                yield self._round(unrounded, flat)
            for member in members:
                if member in apart:
                    yield from self._member(member, flat)
                elif fused and member is fused.step:
                    yield self._one_pass(fused, flat)

    def _fused_update(self, unrounded: Node | None, members: Sequence[Node]) -> FusedUpdate | None:
        """Return the update of the group that C does in one pass."""
        if self.fast != "c" or not sgd.compiled_available():
            return None
        return fused_update(self._plan, None if self._rounding.observer else unrounded, members)

    def _one_pass(self, update: FusedUpdate, flat: slice) -> Run:
        velocity, step = update.velocity, update.step
        param, moved, grad = (self._flat[i] for i in (step.id, velocity.id, velocity.inputs[1]))
        momentum, rate = velocity.attributes["momentum"], self._flat[step.inputs[2]]
        grid = self._rounding.kernel_grid(update.rounded) if update.rounded else None
        return sgd.bind_sgd(param[flat], moved[flat], grad[flat], momentum, rate, grid)

    def _member(self, node: Node, flat: slice) -> Iterator[Run]:
        """Yield the calls that compute and round one span of an elementwise node."""
        if node.op.name == "cast":
            source = self._flat[node.inputs[0]]
            if needs_rounding(self.graph, node):
                yield self._round(node, flat, source)
            elif not np.shares_memory(source, self._flat[node.id]):
                yield partial(np.copyto, self._flat[node.id][flat], source[flat])
            return
        inputs, part = [], rows_of(node.shape, flat)
        for i in node.inputs:
            whole = stored(self._flat[i], self.graph.nodes[i].shape)
            if whole.shape == node.shape:
                whole = whole[part]
            elif whole.size > 1 and whole.ndim == 1:  # along axis 1, as matrices alone are cut
                whole = whole[part[1:2]]
            inputs.append(whole)
        out = stored(self._flat[node.id], node.shape)[part]
        kernel, rounds = self._plan.kernels[node.id], needs_rounding(self.graph, node)
        grid = self._rounding.kernel_grid(node) if rounds and kernel.rounds else None
        attrs = attributes(self.graph, node, self.fast, self._rounding.observer)
        attrs |= {"grid": grid} if grid else {}
        yield kernel.bind(inputs, out, attrs, self._work(node))
        if rounds and not grid:
            yield self._round(node, flat)
        if node.id in self._square_sums:  # while the span is in the cache
            yield self._square_sum(node, flat)

    def _square_sum(self, node: Node, flat: slice) -> Run:
        values, total = self._flat[node.id][flat], np.zeros((), np.float32)
        self._square_sums[node.id].append(total)
        return partial(np.dot, values, values, total)

    def _round(self, node: Node, flat: slice, source: FloatArray | None = None) -> Run:
        out = self._flat[node.id][flat]
        x = out if source is None else source[flat]
        return self._rounding.bind(node, x, out)


def _nothing() -> None:
    """Stands for a value that is already where it is wanted, or comes there with another."""
