"""What a training keeps of itself: values lost, updates that vanish, where a failure began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from policysearch.emulator.compile import Step
from policysearch.graph import FloatArray, Graph
from policysearch.train.lost_values import LostValues, Probe, Tally
from policysearch.train.origin import Origin, Origins, Tracer, Where, is_all_finite
from policysearch.train.swamped import SwampedCounter, SwampedCounts, with_update_sources

KEPT_FOR = 20
"""Steps that are taken again at most to find where a failure began."""

REPEATED = 3
"""So many steps that were not finite are run again at once to count what overflowed in them."""

REPEATED_EVERY = 40
"""Later one more for so many steps: where every step is skipped, looking at each takes the most."""


@dataclass(frozen=True)
class Observed:
    """What was kept so far: counts of the probe, of updates, and origins with NaN born of them.

    `repeated`: the steps not finite that were run again to be counted.
    """

    probed: tuple[LostValues, ...] = ()
    watched: SwampedCounts = field(default_factory=SwampedCounts)
    origins: tuple[Origin, ...] = ()
    born: tuple[LostValues, ...] = ()
    repeated: int = 0


@dataclass(frozen=True, eq=False)
class Past:
    """A step that was taken: its number, the updates before it, what it was fed."""

    index: int
    updates_done: int
    inputs: Sequence[FloatArray]
    labels: FloatArray
    scale: float
    skipped: bool


class Observations:
    """Observers of one training, over all its phases.

    `kept` are the arrays that one step leaves to the next as they were some steps ago, and `past`
    the steps since, so that they can be taken again and looked at. `ended`: all that comes is not
    finite, and says nothing more.
    """

    def __init__(self) -> None:
        self.probe, self.watch, self.origins = Probe(), SwampedCounter(), Origins()
        self.ended, self.repeated = False, 0
        self.kept: dict[str, FloatArray] = {}
        self.past: list[Past] = []
        self._tracers: dict[bool, Tracer] = {}

    @property
    def so_far(self) -> Observed:
        """What was kept so far."""
        found = self.origins.rows, self.origins.tally.rows
        return Observed(self.probe.tally.rows, self.watch.counts, *found, self.repeated)

    def restore(self, observed: Observed) -> None:
        """Go on after what another training has kept."""
        self.probe.tally = Tally(observed.probed)
        self.watch = SwampedCounter(observed.watched)
        self.origins = Origins(observed.origins, Tally(observed.born))
        self.repeated = observed.repeated

    def lost(self) -> tuple[LostValues, ...]:
        """Return all that was lost, by kind, layer, role and op."""
        return self.probe.lost() + self.watch.lost() + self.origins.tally.lost()

    def begin_phase(self) -> None:
        """Forget the compiled steps of the phase before, and what it has kept."""
        self._tracers.clear()
        self.kept = {}

    @property
    def is_due(self) -> bool:
        """Whether the arrays are to be kept anew."""
        return not self.ended and (not self.kept or len(self.past) >= KEPT_FOR)

    def keep(self, arrays: Mapping[str, FloatArray]) -> None:
        """Remember the arrays as they are before a step."""
        if self.kept.keys() != arrays.keys():
            self.kept = {name: np.empty_like(array) for name, array in arrays.items()}
        for name, array in arrays.items():
            np.copyto(self.kept[name], array)
        self.past.clear()

    def went_by(self, step: Past) -> None:
        """Remember a step that was taken since the arrays were kept."""
        if not self.ended:
            self.past.append(step)

    def wants(self, found: Where, skipped: bool) -> bool:
        """Return whether a step in which something was `found` not finite is to be traced."""
        return not self.ended and self.origins.lacks(found, skipped)

    def repeats(self, step: int) -> bool:
        """Return whether a step that is not finite is to be run again to be counted; then it is."""
        is_due = self.repeated < REPEATED + step // REPEATED_EVERY
        self.repeated += is_due
        return is_due

    def is_broken(self, arrays: Iterable[FloatArray]) -> bool:
        """Return whether any of the parameters is not finite, and is so for the first time."""
        return not self.ended and not is_all_finite(arrays)

    def tracer(self, last: bool, graph: Graph, seed: int, step: Step) -> Tracer:
        """Return the step of the phase that keeps every value, compiled once; no value is old.

        `step` is the one in training, whose arrays it has.
        """
        if last not in self._tracers:
            self._tracers[last] = Tracer(graph, seed, step.arrays, step.fast)
        self._tracers[last].clear()
        return self._tracers[last]


def observed_graph(graph: Graph) -> Graph:
    """Return the step with what `SwampedCounter` reads of its updates."""
    return with_update_sources(graph)
