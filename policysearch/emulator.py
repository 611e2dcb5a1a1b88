"""The emulator: a graph compiled to a list of calls over planned, reused buffers.

Values live in float32 containers that hold only numbers of their node's format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from policysearch.accumulators import accumulator_named, product
from policysearch.blocks import Scratch
from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Graph, Node, size
from policysearch.ops.update import all_finite
from policysearch.planning import (
    Plan,
    aligned,
    is_view,
    leading_axis,
    needs_rounding,
    rows_per_block,
    source_array,
    stored,
)
from policysearch.rounding import Rounder, compiled_available, fused_sgd, rounder

Run = Callable[[], object]
Observer = Callable[[Node, FloatArray, FloatArray], None]
"""Called with a node and its values, flat, before and after rounding."""


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
        self._seed, self._compiled, self._observer = seed, compiled, observer
        self._plan = plan = Plan(graph, compiled=compiled)
        self._arena = aligned(plan.elements)
        self._rounders: dict[tuple[str, Rounding], Rounder] = {}
        self._scratch = Scratch()
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
        """Run everything the outputs need: forward, loss, backward, unscale and finite check."""
        with np.errstate(all="ignore"):
            for run in self._forward_backward:
                run()
        self.step_index += 1

    def apply_updates(self) -> None:
        """Replace parameters and optimizer state by their new values."""
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
        """Yield, block after block, the rounding of `unrounded` and then every member."""
        shape = members[0].shape if members else unrounded.shape if unrounded else ()
        if unrounded is not None and not members:
            yield self._round(unrounded, slice(None), 0)
            return
        fused_step = self._sgd_step(members)
        axis = leading_axis(shape)
        rows, row = rows_per_block(shape), size(shape) // shape[axis]
        for block, first in enumerate(range(0, shape[axis], rows)):
            last = min(first + rows, shape[axis])
            flat = slice(first * row, last * row)
            part = (*(slice(None),) * axis, slice(first, last))
            if unrounded is not None:
                yield self._round(unrounded, flat, block)
            for node in members:
                if node is fused_step:
                    continue
                if fused_step is not None and node.id in fused_step.inputs:
                    yield self._fused_sgd(node, fused_step, flat)
                else:
                    yield from self._member(node, part, flat, block)

    def _sgd_step(self, members: Sequence[Node]) -> Node | None:
        """Return the step that the compiled loop can take together with its velocity."""
        use = compiled_available() if self._compiled is None else self._compiled
        for node in members if use else ():
            if node.op.name == "sgd_step" and node.format == "float32":
                velocity = self.graph.nodes[node.inputs[1]]
                own = velocity.op.name == "sgd_velocity" and velocity.format == "float32"
                if own and {velocity.id, node.id} <= self._plan.in_source.keys():
                    return node
        return None

    def _fused_sgd(self, velocity: Node, step: Node, flat: slice) -> Run:
        loop = fused_sgd(None, compiled=self._compiled)
        arrays = (self._flat[i][flat] for i in (step.id, velocity.id, velocity.inputs[1]))
        param, moved, grad = arrays
        momentum, rate = velocity.attributes["momentum"], self._flat[step.inputs[2]]
        return lambda: loop(param, moved, grad, float(rate[0]), momentum, 1.0)

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
        yield self._plan.kernels[node.id].bind(inputs, out, node.attributes, self._work(node))
        if needs_rounding(self.graph, node):
            yield self._round(node, flat, block)
        if node.id in self._square_sums:  # while the block is in the cache
            yield self._square_sum(node, flat)

    def _square_sum(self, node: Node, flat: slice) -> Run:
        block, total = self._flat[node.id][flat], np.zeros((), np.float32)
        self._square_sums[node.id].append(total)
        return partial(np.dot, block, block, total)

    def _round(self, node: Node, flat: slice, block: int, source: FloatArray | None = None) -> Run:
        key = node.format, node.rounding
        if key not in self._rounders:
            self._rounders[key] = rounder(
                format_named(node.format),
                node.rounding,
                seed=self._seed,
                compiled=self._compiled,
                scratch=self._scratch,
            )
        round_to, out = self._rounders[key], self._flat[node.id][flat]
        x = out if source is None else source[flat]
        draw = (node.id << 12) + block
        if self._observer is not None:
            return self._observed(self._observer, node, round_to, x, out, draw)
        if node.rounding.mode != "stochastic":
            return round_to.bind(x, out)
        drawn = round_to.bind_drawn(x, out)
        return lambda: drawn((self.step_index << 32) + draw)

    def _observed(
        self,
        observer: Observer,
        node: Node,
        round_to: Rounder,
        x: FloatArray,
        out: FloatArray,
        draw: int,
    ) -> Run:
        def run() -> None:
            before = x.copy()
            round_to(x, out, counter=(self.step_index << 32) + draw)
            observer(node, before, out)

        return run


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
