"""Which run to spend next: of which policy, with which seed, over how much of the steps.

A short run is cheap and may rank policies as whole runs do; whether it does is measured in the
study itself. One that is kept is continued, not repeated. The front is trained with new seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from policysearch.search.searcher import LADDER, Row, Searcher

SHORT = 0.25
"""Share of the steps that a short run takes."""

LEARNED = 1.0 / 3.0
"""Share of what float32 learns in all that it must have learned by the end of a short run."""

CARRIES = 0.9
"""Rank correlation from which on short runs are taken for whole ones."""

FEWEST = 5
"""So many policies must have been told before a rank correlation says anything."""

LOOK = 4
"""Short runs per place of the space, after which the front they propose is continued to its end."""

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


def short_share(first_loss: float, short_loss: float, tail_loss: float) -> float:
    """Return SHORT where float32's own losses say that so short a run has learned, else 1.

    `first_loss` before any update, `short_loss` after SHORT of the steps, `tail_loss` at the end.
    """
    learned, in_all = first_loss - short_loss, first_loss - tail_loss
    return SHORT if learned >= LEARNED * in_all > 0.0 else 1.0


class RunSearcher:
    """Asks for runs and is told the gaps along them.

    `make` returns a new searcher, which chooses policies; `places` is how many places they have.
    The first of `seeds` is searched with, the others are for the front. `short` is the share of the
    steps that is tried of a policy first, 1 for whole runs alone. What is asked for depends on what
    was told, in its order, and on what is outstanding.
    """

    def __init__(
        self,
        make: Callable[[], Searcher],
        places: int,
        seeds: Sequence[int] = (0,),
        short: float = SHORT,
    ) -> None:
        self._make, self._places, self._seeds, self._short = make, places, tuple(seeds), short
        self._gaps: dict[tuple[Row, int], dict[float, float]] = {}
        self._costs: dict[Row, Costs] = {}
        self._running: list[Run] = []
        self.carries = short < 1.0
        """Whether short runs are asked for: so long as no rank correlation spoke against them."""

    def tell(self, run: Run, gaps: Mapping[float, float]) -> None:
        """Learn the loss gaps in nats along a run, by the share of the steps done, to its end."""
        self._costs.setdefault(run.row, run.costs)
        self._gaps.setdefault((run.row, run.seed), {}).update(gaps)
        self._running = [each for each in self._running if each != run]
        self.carries = self.carries and not any(c < CARRIES for c in self.rank_correlations)

    def ask(self, count: int = 1) -> list[Run]:
        """Return up to `count` runs; fewer where there is nothing left to train."""
        found: list[Run] = []
        while len(found) < count and (run := self._following()) is not None:
            self._running.append(run)
            self._costs.setdefault(run.row, run.costs)
            found.append(run)
        return found

    def proposed(self) -> list[Row]:
        """Return the front as it looks: by short runs while they carry, else by whole ones."""
        told = {row for row, _ in self._gaps}
        return [row for row in self._searcher().members() if row in told]

    @property
    def rank_correlations(self) -> tuple[float, float]:
        """How short runs rank policies as they did before, and as whole runs do.

        NaN where fewer than FEWEST policies were told.
        """
        short = [gaps for gaps in self._gaps.values() if self._short in gaps]
        before = [(gaps[min(gaps)], gaps[self._short]) for gaps in short if min(gaps) < self._short]
        whole = [(gaps[self._short], gaps[1.0]) for gaps in short if 1.0 in gaps]
        return _correlation(before), _correlation(whole)

    def _following(self) -> Run | None:
        searcher, first = self._searcher(), self._seeds[0]
        if self.carries and len(self._costs) >= LOOK * self._places:
            whole = {run.row for run in self._running if run.share == 1.0}
            whole |= {row for (row, _), gaps in self._gaps.items() if 1.0 in gaps}
            unsure = [row for row in searcher.members() if row not in whole]
            if unsure:
                return Run(unsure[0], self._costs[unsure[0]], first, 1.0)
        again = self._again(searcher)
        if again is not None:
            return again
        # Short runs of the whole ladder are cheap, and far enough apart to say whether they rank.
        asked = searcher.ask(ladder=np.inf if self.carries else LADDER)
        return Run(*asked[0], first, self._short if self.carries else 1.0) if asked else None

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

    def _searcher(self) -> Searcher:
        """Return a searcher that was told what counts: short runs while they carry, else whole."""
        searcher, share = self._make(), self._short if self.carries else 1.0
        for (row, _), gaps in self._gaps.items():
            if share in gaps:
                searcher.tell(row, self._costs[row], gaps[share])
        for run in self._running:
            searcher.expect(run.row, run.costs)
        return searcher


def _correlation(pairs: Sequence[tuple[float, float]]) -> float:
    if len(pairs) < FEWEST:
        return np.nan
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)
