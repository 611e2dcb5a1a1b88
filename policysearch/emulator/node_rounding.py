"""The calls that round the values of a graph's nodes, each with its format's rounder."""

from __future__ import annotations

from collections.abc import Callable

from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Node
from policysearch.rounding.nearest import Known
from policysearch.rounding.reference import Scratch
from policysearch.rounding.rounder import Rounder, compiled_available, rounder

Observer = Callable[[Node, FloatArray, FloatArray], None]
"""Called with a node and its values, flat, before and after rounding."""


class NodeRounding:
    """Binds roundings of one executable; they share their work buffers, so they take turns.

    `step` keys stochastic rounding: together with the node and the block it is the counter of
    `Rounder`.
    """

    def __init__(self, seed: int, compiled: bool | None, observer: Observer | None) -> None:
        self.step = 0
        self.observer = observer
        self._seed, self._compiled = seed, compiled
        self._scratch = Scratch()
        self._rounders: dict[tuple[str, Rounding], Rounder] = {}

    @property
    def compiled(self) -> bool:
        """Whether the extension rounds."""
        return compiled_available() if self._compiled is None else self._compiled

    def rounder(self, format_name: str, rounding: Rounding) -> Rounder:
        """Return the rounder onto a format: one for all who ask."""
        key = format_name, rounding
        if key not in self._rounders:
            self._rounders[key] = rounder(
                format_named(format_name),
                rounding,
                seed=self._seed,
                compiled=self._compiled,
                scratch=self._scratch,
            )
        return self._rounders[key]

    def kernel_grid(self, node: Node) -> bytes | None:
        """Return what a kernel that rounds is told to round `node` with; None if it is not to."""
        if self.observer is not None:
            return None
        return self.rounder(node.format, node.rounding).kernel_grid

    def bind(
        self, node: Node, x: FloatArray, out: FloatArray, block: int, known: Known
    ) -> Callable[[], object]:
        """Return the call that rounds `x`, block number `block` of the node, into `out`."""
        round_to = self.rounder(node.format, node.rounding)
        draw = (node.id << 12) + block
        if self.observer is not None:
            return self._observed(self.observer, node, round_to, x, out, draw)
        if node.rounding.mode != "stochastic":
            return round_to.bind(x, out, known)
        drawn = round_to.bind_drawn(x, out)
        return lambda: drawn((self.step << 32) + draw)

    def _observed(
        self,
        observer: Observer,
        node: Node,
        round_to: Rounder,
        x: FloatArray,
        out: FloatArray,
        draw: int,
    ) -> Callable[[], object]:
        def run() -> None:
            before = x.copy()
            round_to(x, out, counter=(self.step << 32) + draw)
            observer(node, before, out)

        return run
