"""Whether what is said to be left at most is so: where searches stop by it, and what is left then.

Each search goes on until, at 95 %, no more than `LEFT` can be left, or `most` trainings are spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.search.goals import best_of
from benchmarks.search.searches import Choice
from benchmarks.search.tables import Problem, load, mean_problem, problems
from benchmarks.search.traps import TRAPS, trap
from policysearch.search.goals import Goal

LEFT = 0.05
SEEDS = range(10, 16)
"""Of traps; smaller ones were looked at while the bound was made."""


@dataclass(frozen=True)
class Stop:
    """Where a search ended, for a goal or (None) the front: its `trainings`, and what is `left`.

    `stopped`: by the bound, not because trainings were spent.
    """

    goal: Goal | None
    trainings: int
    stopped: bool
    left: float
    chance: float

    @property
    def holds(self) -> bool:
        return self.left <= LEFT + 1e-9


@threadpool_limits.wrap(limits=1)
def stop(problem: Problem, goal: Goal | None, most: int) -> Stop:
    """Search until the bound says to stop."""
    choice, table = Choice(problem.table), problem.table
    searcher = choice.searcher(goal)
    found = np.flatnonzero(table.exact).tolist()
    for place in found[:1]:
        searcher.tell_outside(choice.costs(place), 0.0)
    for count in range(most + 1):
        bound = searcher.left()
        if bound.share <= LEFT or count == most:
            break
        asked = searcher.ask()
        if not asked:
            break
        row, costs = asked[0]
        searcher.tell(row, costs, float(problem.told[choice.places[row]]))
        found.append(choice.places[row])
    return Stop(goal, count, bound.share <= LEFT, left_in(problem, goal, found), bound.chance)


def left_in(problem: Problem, goal: Goal | None, found: list[int]) -> float:
    """Return what of the goal, or of the volume, `found` leaves: a share."""
    if goal is None:
        return 1.0 - problem.share(found) if problem.volume else 0.0
    mine, best = (best_of(problem, goal, each) for each in (found, list(range(len(problem.true)))))
    return float(1.0 - np.exp(best - mine)) if np.isfinite(best) else 0.0


def wanted(problem: Problem) -> list[Goal | None]:
    """Return the front, and the goals of a table."""
    measure = problem.table.measure
    unit = np.log1p(measure.largest_gap / measure.smallest_gap)
    gaps = [float(measure.smallest_gap * np.expm1(share * unit)) for share in (0.3, 0.8)]
    peak = float(np.quantile(problem.table.costs[:, 1], 0.3))
    costly = [goal for gap in gaps for goal in (Goal("time", gap=gap), Goal("memory", gap=gap))]
    return [None, *costly, Goal("gap", memory=peak)]


def drawn(name: str, seeds: Sequence[int] = SEEDS) -> list[Problem]:
    """Return the problems of a trap."""
    return [mean_problem(trap(name, seed)) for seed in seeds]


def report(tables: Sequence[str], most: int) -> float:
    """Print where searches of each table or trap stop; return the share of true bounds."""
    every: list[Stop] = []
    for name in tables:
        each = drawn(name) if name in TRAPS else [mean_problem(load(name)), *problems(load(name))]
        found = [stop(problem, goal, most) for problem in each for goal in wanted(problem)]
        print(f"{name:<18} {said(found)}", flush=True)
        every += found
    for word, front in (("front", True), ("goals", False)):
        print(f"  {word:<16} {said([s for s in every if (s.goal is None) == front])}")
    print(f"{'all':<18} {said(every)}")
    ended = [each for each in every if each.stopped]
    return sum(each.holds for each in ended) / len(ended)


def said(found: Sequence[Stop]) -> str:
    """Return how many searches stopped, after how many trainings, and how many bounds hold."""
    ended = [each for each in found if each.stopped]
    if not ended:
        return f"none of {len(found)} stopped"
    counts = np.array([each.trainings for each in ended])
    wrong = sorted((each.left for each in ended if not each.holds), reverse=True)
    much = f", left {' '.join(f'{each:.2f}' for each in wrong[:6])}" if wrong else ""
    return (
        f"{len(ended)} of {len(found)} stopped after {np.median(counts):g} (most {counts.max()}); "
        f"{len(ended) - len(wrong)} true ({1 - len(wrong) / len(ended):.2f}){much}"
    )
