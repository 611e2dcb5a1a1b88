"""Trainings to the best policy for a goal: asked for it, and filtered out of a search.

Of each table twelve goals, for the mean of its training seeds and for each of them: the fastest and
the smallest policy within a gap (a tenth, three tenths, six tenths and all of the table's scale of
gaps), and the closest one within a peak (quantiles of the table's). A goal is reached with a policy
whose price is within 1 % of the best there is, or whose gap within 10 %, or 10 % of the table's
smallest gap. Goals that float32 reaches are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.search.searches import Choice
from benchmarks.search.tables import Problem, load, mean_problem, problems
from policysearch.search.goals import Goal
from policysearch.search.searcher import WORST

BUDGETS = (0.1, 0.3, 0.6, 1.0)
PEAKS = (0.1, 0.25, 0.5, 0.75)
NEAR = {"time": 0.01, "memory": 0.01, "gap": 0.1}
WORDS = {"time": "fastest", "memory": "smallest", "gap": "closest"}


@dataclass(frozen=True)
class Counted:
    """Trainings to a goal, asked for it and for the front; more than `most` count as one more."""

    goal: Goal
    asked: int
    filtered: int


def goals_of(problem: Problem) -> list[Goal]:
    """Return the goals of a table."""
    table, measure = problem.table, problem.table.measure
    unit = np.log1p(measure.largest_gap / measure.smallest_gap)
    gaps = [float(measure.smallest_gap * np.expm1(share * unit)) for share in BUDGETS]
    peaks = np.quantile(table.costs[~table.exact, 1], PEAKS).tolist()
    costly = [goal for gap in gaps for goal in (Goal("time", gap=gap), Goal("memory", gap=gap))]
    return [*costly, *(Goal("gap", memory=peak) for peak in peaks)]


def asked_for(problem: Problem, goal: Goal | None) -> Iterator[int]:
    """Yield the places that are trained for a goal, or for the front."""
    choice = Choice(problem.table)
    searcher = choice.searcher(goal)
    while asked := searcher.ask():
        row, costs = asked[0]
        yield choice.places[row]
        searcher.tell(row, costs, float(problem.told[choice.places[row]]))


def best_of(problem: Problem, goal: Goal, places: list[int]) -> float:
    """Return the least value of the goal among these places; infinity where none meets it.

    What failed meets none, and so does what is as far from float32 as that.
    """
    gaps, costs = problem.true[places], problem.table.costs[places]
    failed_from = WORST * problem.table.measure.largest_gap
    held = np.where(gaps >= failed_from, np.inf, gaps)
    values = goal.values(held, costs, problem.table.measure.smallest_gap)
    return float(values.min(initial=np.inf))


def trainings(problem: Problem, goal: Goal, places: Iterator[int], most: int) -> int:
    """Return after how many of `places` the goal is reached, `most` + 1 where later."""
    wanted = best_of(problem, goal, list(range(len(problem.true)))) + NEAR[goal.axis]
    found = np.flatnonzero(problem.table.exact).tolist()
    for count in range(most + 1):
        if best_of(problem, goal, found) <= wanted:
            return count
        found.append(next(places, found[0]))
    return most + 1


def counted(problem: Problem, most: int) -> list[Counted]:
    """Return the trainings to each goal of a problem."""
    front = [place for place, _ in zip(asked_for(problem, None), range(most), strict=False)]
    counts = []
    for goal in goals_of(problem):
        if not np.isfinite(best_of(problem, goal, list(range(len(problem.true))))):
            continue
        filtered = trainings(problem, goal, iter(front), most)
        if filtered:
            asked = trainings(problem, goal, asked_for(problem, goal), most)
            counts.append(Counted(goal, asked, filtered))
    return counts


def said(found: list[Counted], most: int) -> str:
    """Return the sums of trainings, and what of them is of goals both ways reached."""
    both = [each for each in found if max(each.asked, each.filtered) <= most]
    lines = []
    for each in (found, both):
        asked, filtered = (sum(n) for n in zip(*((c.asked, c.filtered) for c in each), strict=True))
        lines.append(f"{asked} for {filtered} ({asked / filtered:.2f})")
    later = len(found) - len(both)
    return lines[0] + (f"; {lines[1]} without {later} above {most}" if later else "")


def report(tables: list[str], most: int) -> float:
    """Print the trainings of each table and of all; return asked over filtered, of all."""
    every: list[Counted] = []
    for name in tables:
        table = load(name)
        each = (mean_problem(table), *problems(table))
        found = [one for problem in each for one in counted(problem, most)]
        every += found
        print(f"{name:<18} {said(found, most)}", flush=True)
    for axis, word in WORDS.items():
        print(f"  {word:<16} {said([c for c in every if c.goal.axis == axis], most)}")
    print(f"{'all':<18} {said(every, most)}")
    return sum(each.asked for each in every) / sum(each.filtered for each in every)
