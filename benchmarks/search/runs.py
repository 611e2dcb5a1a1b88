"""Which run to spend next: of which policy, with which seed, over how much of the steps.

Policies are evaluated by short runs first (`search.fidelity`); those that promise most are gone on
with, not repeated. Then whole runs alone count. The front is trained with new seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from policysearch.search.acquisition import Yardstick
from policysearch.search.fidelity import (
    RUNS_PER_PLACE,
    SHORT,
    promising,
    rank_correlation,
    ranks_alike,
)
from policysearch.search.hypervolume import Array
from policysearch.search.searcher import Searcher
from policysearch.space.options import Row

BEFORE_SEEDS = 3
"""Policies per place of the space that are trained before a member of the front is trained anew."""

Costs = tuple[float, float]


@dataclass(frozen=True)
class Run:
    """One training: of the policy `row`, with `seed`, until `share` of the task's steps are done.

    One that ended before goes on from there.
    """

    row: Row
    costs: Costs
    seed: int
    share: float


class RunSearcher:
    """Asks for runs and is told the gaps along them.

    `make` returns a new searcher, which chooses policies; `places` is how many places they have,
    `measure` what their volume is measured by. The first of `seeds` is searched with, the others
    are for the front. `short` is the share of the steps that is tried of a policy first, 1 for
    whole runs alone. What is asked for depends on what was told, in its order, and on what is
    outstanding.
    """

    def __init__(
        self,
        make: Callable[[], Searcher],
        places: int,
        measure: Yardstick,
        seeds: Sequence[int] = (0,),
        short: float = SHORT,
    ) -> None:
        self._make, self._places, self._measure = make, places, measure
        self._seeds, self._short = tuple(seeds), short
        self._gaps: dict[tuple[Row, int], dict[float, float]] = {}
        self._costs: dict[Row, Costs] = {}
        self._running: list[Run] = []
        self.carries = short < 1.0
        """Whether policies are looked at first: so long as no rank correlation spoke against it."""

    def tell(self, run: Run, gaps: Mapping[float, float]) -> None:
        """Learn the loss gaps in nats along a run, by the share of the steps done, to its end."""
        self._costs.setdefault(run.row, run.costs)
        self._gaps.setdefault((run.row, run.seed), {}).update(gaps)
        self._running = [each for each in self._running if each != run]
        self.carries = self.carries and all(ranks_alike(*each) for each in self._compared())

    def ask(self, count: int = 1) -> list[Run]:
        """Return up to `count` runs; fewer where there is nothing left to train."""
        found: list[Run] = []
        while len(found) < count and (run := self._following()) is not None:
            self._running.append(run)
            self._costs.setdefault(run.row, run.costs)
            found.append(run)
        return found

    def proposed(self) -> list[Row]:
        """Return the front: what looks propose until that is trained whole, then by whole runs."""
        if self._looking or self._unsure():
            return self._proposed()
        return [row for row in self._searcher().members() if (row, self._seeds[0]) in self._gaps]

    @property
    def rank_correlations(self) -> tuple[float, float]:
        """How short runs rank policies as they did before, and as whole runs do.

        NaN where fewer than FEWEST policies were told.
        """
        before, whole = (rank_correlation(pairs) for pairs, _ in self._compared())
        return before, whole

    def _compared(self) -> list[tuple[list[tuple[float, float]], Array]]:
        """Return gaps before short runs' ends and at them, and at these and whole: with prices."""
        short = [(row, gaps) for (row, _), gaps in self._gaps.items() if self._short in gaps]
        before = [(row, (g[min(g)], g[self._short])) for row, g in short if min(g) < self._short]
        whole = [(row, (g[self._short], g[1.0])) for row, g in short if 1.0 in g]
        return [
            ([pair for _, pair in found], self._prices([row for row, _ in found]))
            for found in (before, whole)
        ]

    def _prices(self, rows: Sequence[Row]) -> Array:
        return np.array([self._costs[row] for row in rows]).reshape(len(rows), 2)

    def _following(self) -> Run | None:
        first = self._seeds[0]
        # Looks at the whole ladder are cheap, and far enough apart to say whether they rank.
        if self._looking and (asked := self._searcher(self._short).ask(whole_start=True)):
            return Run(*asked[0], first, self._short)
        if unsure := self._unsure():
            return Run(unsure[0], self._costs[unsure[0]], first, 1.0)
        searcher = self._searcher()
        again = self._again(searcher)
        if again is not None:
            return again
        asked = searcher.ask()
        return Run(*asked[0], first, 1.0) if asked else None

    @property
    def _looking(self) -> bool:
        """Whether policies are still looked at: until LOOK per place were, while looks carry."""
        return self.carries and len(self._costs) < RUNS_PER_PLACE * self._places

    def _unsure(self) -> list[Row]:
        """Return what looks propose, while they carry, without what is trained whole or will be."""
        if not self.carries:
            return []
        whole = {run.row for run in self._running if run.share == 1.0}
        whole |= {row for (row, _), gaps in self._gaps.items() if 1.0 in gaps}
        return [row for row in self._proposed() if row not in whole]

    def _proposed(self) -> list[Row]:
        short, first = self._short, self._seeds[0]
        told = self._gaps.items()
        looks = {row: g[short] for (row, seed), g in told if seed == first and short in g}
        rows, gaps = list(looks), np.array(list(looks.values()))
        return [rows[place] for place in promising(self._measure, gaps, self._prices(rows))]

    def _again(self, searcher: Searcher) -> Run | None:
        """Return a run of a member of the front with a seed it lacks: each second run is one."""
        runs = self._gaps.keys() | {(run.row, run.seed) for run in self._running}
        trained = {row for row, _ in runs}
        again = len(runs) - len(trained)
        if len(self._seeds) == 1 or len(trained) < BEFORE_SEEDS * self._places + again:
            return None
        wanted = [
            (place, row, seed)
            for row in searcher.members()
            for place, seed in enumerate(self._seeds)
            if row in trained and (row, seed) not in runs
        ]
        if not wanted:
            return None
        _, row, seed = min(wanted)
        return Run(row, self._costs[row], seed, 1.0)

    def _searcher(self, share: float = 1.0) -> Searcher:
        """Return a searcher that was told the gaps at `share` of the steps."""
        searcher = self._make()
        for (row, _), gaps in self._gaps.items():
            if share in gaps:
                searcher.tell(row, self._costs[row], gaps[share])
        for run in self._running:
            searcher.expect(run.row, run.costs)
        return searcher
