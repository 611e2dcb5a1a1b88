"""How many trainings a search takes while several are under way at once, on the search tables."""

from __future__ import annotations

import heapq

import numpy as np

from benchmarks.search.searches import Choice
from benchmarks.search.tables import Problem, load, mean_problem, problems

SHARE = 0.95


def trainings(problem: Problem, in_flight: int, seconds: np.ndarray, seed: int, most: int) -> int:
    """Return how many trainings ended before SHARE of the volume was there; `most` + 1 at most.

    `in_flight` of them are under way at any time; each takes one of `seconds`, drawn, and is told
    when it ends.
    """
    choice, rng = Choice(problem.table), np.random.default_rng(seed)
    searcher = choice.searcher()
    under_way: list[tuple[float, int]] = []
    ended: list[int] = []
    now = 0.0
    while len(ended) < most:
        for row, _ in searcher.ask(in_flight - len(under_way)):
            place = choice.places[row]
            heapq.heappush(under_way, (now + float(rng.choice(seconds)), place))
        if not under_way:
            break
        now, place = heapq.heappop(under_way)
        searcher.tell(choice.row(place), choice.costs(place), float(problem.told[place]))
        ended.append(place)
        if problem.share(ended) >= SHARE:
            return len(ended)
    return most + 1


def report(names: list[str], in_flight: list[int], seconds: np.ndarray, seeds: int) -> None:
    """Print the median over training seeds times draws of run times, and beside one at a time."""
    for name in names:
        table = load(name)
        for label, cases in (("mean of seeds", [mean_problem(table)]), ("each", problems(table))):
            words = []
            base = 0.0
            for count in in_flight:
                draws = range(1 if count == 1 else seeds)
                found = [trainings(p, count, seconds, seed, 200) for p in cases for seed in draws]
                middle = float(np.median(found))
                base = base or middle
                words.append(f"{count}: {middle:g} ({middle / base:.2f}x)")
            print(
                f"{name}, {label}: trainings to {SHARE:.0%} with so many in flight  "
                f"{'  '.join(words)}",
                flush=True,
            )
