"""The calls that round the values of a graph's nodes, each with its format's rounder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policysearch.emulator.nodes import Observer, draws
from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Node
from policysearch.rounding.fast_numpy import Scratch
from policysearch.rounding.grid import SPAN
from policysearch.rounding.rounder import Fast, Rounder, rounder


class NodeRounding:
    """Binds roundings of one executable; they share their work buffers, so they take turns.

    `step` keys stochastic rounding, with the node.
    """

    def __init__(self, seed: int, fast: Fast, observer: Observer | None) -> None:
        self.step = 0
        self.observer = observer
        self._seed, self._fast = seed, fast
        self._scratch = Scratch()
        self._rounders: dict[tuple[str, Rounding], Rounder] = {}

    def rounder(self, format_name: str, rounding: Rounding) -> Rounder:
        """Return the rounder onto a format: one for all who ask."""
        key = format_name, rounding
        if key not in self._rounders:
            self._rounders[key] = rounder(
                format_named(format_name),
                rounding,
                seed=self._seed,
                fast=self._fast,
                scratch=self._scratch,
            )
        return self._rounders[key]

    def work(self, elements: int) -> FloatArray:
        """Return scratch of one span, in the cache because the roundings use it in their turns."""
        self._scratch.reserve(max(elements, SPAN))
        return self._scratch.rows[0][:elements].view(np.float32)

    def kernel_grid(self, node: Node) -> bytes | None:
        """Return what a kernel that rounds is told to round `node` with; None if it is not to."""
        if self.observer is not None:
            return None
        return self.rounder(node.format, node.rounding).kernel_grid

    def bind(self, node: Node, x: FloatArray, out: FloatArray) -> Callable[[], object]:
        """Return the call that rounds `x`, a span of the node or all of it, into `out`."""
        round_to = self.rounder(node.format, node.rounding)
        if self.observer is not None:
            return self._run_with_observer(self.observer, node, round_to, x, out)
        if node.rounding.mode != "stochastic":
            return round_to.bind(x, out)
        drawn = round_to.bind_drawn(x, out)
        return lambda: drawn(draws(node, self.step))

    def _run_with_observer(
        self,
        observer: Observer,
        node: Node,
        round_to: Rounder,
        x: FloatArray,
        out: FloatArray,
    ) -> Callable[[], object]:
        # a span at a time, so that what the observer makes of it is small; draws go by the whole
        at_once = len(x) if node.rounding.mode == "stochastic" else SPAN
        parts = [slice(start, start + at_once) for start in range(0, len(x), at_once)]

        def run() -> None:
            for part in parts:
                before = x[part].copy()
                round_to(x[part], out[part], draws(node, self.step))
                observer(node, before, out[part])

        return run
