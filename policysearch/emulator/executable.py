"""The emulator: a graph compiled to a list of calls over planned, reused buffers.

Values live in float32 containers that hold only numbers of their node's format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from policysearch.accumulators import accumulator_named
from policysearch.emulator.fusion import FusedUpdate, fused_update
from policysearch.emulator.node_rounding import NodeRounding, Observer
from policysearch.emulator.plan import (
    Plan,
    is_view,
    needs_rounding,
    rows_per_block,
)
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node, size
from policysearch.layout import aligned, leading_axis, stored
from policysearch.ops.update import all_finite
from policysearch.products.product import product

Run = Callable[[], object]


def source_array(node: Node, given: Mapping[str, FloatArray]) -> FloatArray:
    """Return the flat array of a source: that of `given` under its name, or a new one."""
    if node.name not in given:
        return aligned(size(node.shape))
    array = given[node.name]
    flat = array.ravel(order="K")
    assert np.shares_memory(flat, array), f"source {node.name} is not in storage order"
    return flat


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
        compiled: bool | None,
        sources: Mapping[str, FloatArray],
        observer: Observer | None,
    ) -> None:
        self.graph = graph
        self.step_index = 0
        self._compiled = compiled
        self._rounding = NodeRounding(seed, compiled, observer)
        self._plan = plan = Plan(graph, compiled=compiled)
        self._arena = aligned(plan.elements)
        self._flat: dict[int, FloatArray] = {}
        checked = (node for node in graph.nodes if node.op is all_finite)
        self._square_sums: dict[int, list[FloatArray]] = {
            i: [] for node in checked for i in node.inputs
        }
        self.arrays: dict[str, FloatArray] = {}
        for node in graph.nodes:
            if node.op.kind == "source":
                self._flat[node.id] = source_array(node, sources)
                self.arrays[node.name] = stored(self._flat[node.id], node.shape)
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
        """Yield the calls of the nodes in positions [start, stop), groups block by block.

        The rounding of a value that cannot be computed in blocks joins the group after it.
        """
        groups = dict(self._plan.groups)
        position, waiting = start, None
        while position < stop:
            node = self._plan.order[position]
            if position in groups:
                members = self._plan.order[position : groups[position]]
                if waiting is not None and waiting.shape != node.shape:
                    yield from self._blocks(waiting, [])
                    waiting = None
                yield from self._blocks(waiting, members)
                position, waiting = groups[position], None
                continue
            if waiting is not None:
                yield from self._blocks(waiting, [])
            yield self._whole(node)
            waiting = node if needs_rounding(self.graph, node) else None
            position += 1
        if waiting is not None:
            yield from self._blocks(waiting, [])

    def _whole(self, node: Node) -> Run:
        inputs = [stored(self._flat[i], self.graph.nodes[i].shape) for i in node.inputs]
        out = stored(self._flat[node.id], node.shape)
        if is_view(self.graph, node) and np.shares_memory(out, inputs[0]):
            return _nothing
        kernel = self._plan.kernels[node.id]
        run = kernel.bind(inputs, out, self._attributes(node), self._work(node))
        return self._finite(node, run) if node.op is all_finite else run

    def _finite(self, node: Node, every_element: Run) -> Run:
        """Return the finite check by the sums of squares that the blocks of its inputs left.

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

    def _attributes(self, node: Node) -> dict[str, object]:
        attrs = node.attributes
        if node.op.kind == "gemm" and node.accumulator != "float32":
            left, right = (format_named(self.graph.nodes[i].format) for i in node.inputs[:2])
            row = accumulator_named(node.accumulator)
            attrs["product"] = product(row, (left, right), compiled=self._compiled)
        return attrs

    def _work(self, node: Node) -> FloatArray:
        scratch = self._plan.work.get(node.id)
        if scratch is None:
            return self._flat[node.id]
        return self._arena[scratch.offset : scratch.offset + scratch.elements]

    def _blocks(self, unrounded: Node | None, members: Sequence[Node]) -> Iterator[Run]:
        """Yield, block after block, the rounding of `unrounded` and then every member.

        Casts and the fused update touch every array once, so on their own they need no blocks.
        """
        if not members and unrounded is not None:
            yield self._round(unrounded, slice(None), 0)
            return
        fused = self._fused_update(unrounded, members)
        together = fused.nodes if fused else ()
        apart = [node for node in (unrounded, *members) if node and node not in together]
        shape = members[0].shape
        axis = leading_axis(shape)
        whole = all(node.op.name == "cast" and node.rounding.mode != "stochastic" for node in apart)
        rows, row = shape[axis] if whole else rows_per_block(shape), size(shape) // shape[axis]
        for block, first in enumerate(range(0, shape[axis], rows)):
            last = min(first + rows, shape[axis])
            flat = slice(first * row, last * row)
            part = (*(slice(None),) * axis, slice(first, last))
            if unrounded in apart:
                yield self._round(unrounded, flat, block)
            for node in members:
                if node in apart:
                    yield from self._member(node, part, flat, block)
                elif fused and node is fused.step:
                    yield self._one_pass(fused, flat)

    def _fused_update(self, unrounded: Node | None, members: Sequence[Node]) -> FusedUpdate | None:
        """Return the update of the group that one pass saves reading or writing something."""
        found = fused_update(self._plan, None if self._rounding.observer else unrounded, members)
        saves = found is not None and (found.rounded or self._rounding.compiled)
        return found if saves else None

    def _one_pass(self, update: FusedUpdate, flat: slice) -> Run:
        velocity, step = update.velocity, update.step
        param, moved, grad = (self._flat[i] for i in (step.id, velocity.id, velocity.inputs[1]))
        momentum, rate = velocity.attributes["momentum"], self._flat[step.inputs[2]]
        round_to = self._rounding.rounder(*update.rounding)
        known = self._plan.known(update.rounded or step)
        return round_to.bind_sgd(param[flat], moved[flat], grad[flat], momentum, rate, known)

    def _member(
        self, node: Node, part: tuple[slice, ...], flat: slice, block: int
    ) -> Iterator[Run]:
        """Yield the calls that compute and round one block of an elementwise node."""
        if node.op.name == "cast":
            source = self._flat[node.inputs[0]]
            if needs_rounding(self.graph, node):
                yield self._round(node, flat, block, source)
            elif not np.shares_memory(source, self._flat[node.id]):
                yield partial(np.copyto, self._flat[node.id][flat], source[flat])
            return
        inputs = []
        for i in node.inputs:
            whole = stored(self._flat[i], self.graph.nodes[i].shape)
            if whole.shape == node.shape:
                whole = whole[part]
            elif whole.ndim == 1:  # broadcast along axis 1, which only matrices are cut along
                whole = whole[part[1:2]]
            inputs.append(whole)
        out = stored(self._flat[node.id], node.shape)[part]
        kernel, rounds = self._plan.kernels[node.id], needs_rounding(self.graph, node)
        grid = self._rounding.kernel_grid(node) if rounds and kernel.rounds else None
        attrs = node.attributes | ({"grid": grid} if grid else {})
        yield kernel.bind(inputs, out, attrs, self._work(node))
        if rounds and not grid:
            yield self._round(node, flat, block)
        if node.id in self._square_sums:  # while the block is in the cache
            yield self._square_sum(node, flat)

    def _square_sum(self, node: Node, flat: slice) -> Run:
        block, total = self._flat[node.id][flat], np.zeros((), np.float32)
        self._square_sums[node.id].append(total)
        return partial(np.dot, block, block, total)

    def _round(self, node: Node, flat: slice, block: int, source: FloatArray | None = None) -> Run:
        out = self._flat[node.id][flat]
        x = out if source is None else source[flat]
        return self._rounding.bind(node, x, out, block, self._plan.known(node))


def _nothing() -> None:
    """Stands for a value that already is where it is wanted."""


def compile_graph(
    graph: Graph,
    *,
    seed: int = 0,
    compiled: bool | None = None,
    sources: Mapping[str, FloatArray] | None = None,
    observer: Observer | None = None,
) -> Executable:
    """Return `graph` ready to run.

    `sources` shares arrays of another executable (parameters, state). `compiled` None uses the
    C extensions where they are built; numpy gives the same bits. `observer` sees every rounding.
    """
    return Executable(graph, seed=seed, compiled=compiled, sources=sources or {}, observer=observer)
