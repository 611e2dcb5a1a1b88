"""How many trainings a search takes while several are under way at once, on the search tables."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from benchmarks.search.searches import Choice
from benchmarks.search.tables import Problem, greedy, load, mean_problem, problems

SHARE = 0.95


class Asked(Protocol):
    """What says which policies of a table to train next."""

    def ask(self, count: int) -> list[int]:
        """Return the places of `count` policies, fewer where there are no more."""
        ...

    def tell(self, place: int) -> None:
        """Learn that the training of a policy ended."""
        ...


class Own:
    """The searcher of this package."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._choice = problem, Choice(problem.table)
        self._searcher = self._choice.searcher()

    def ask(self, count: int) -> list[int]:
        return [self._choice.places[row] for row, _ in self._searcher.ask(count)]

    def tell(self, place: int) -> None:
        choice, gap = self._choice, float(self._problem.told[place])
        self._searcher.tell(choice.row(place), choice.costs(place), gap)


class Knowing:
    """Greedy choice by someone who knows every result."""

    def __init__(self, problem: Problem) -> None:
        self._best: Iterator[int] = greedy(problem)

    def ask(self, count: int) -> list[int]:
        return list(itertools.islice(self._best, count))

    def tell(self, place: int) -> None:
        return None


def trainings(
    problem: Problem, asked: Asked, in_flight: int, seconds: np.ndarray, seed: int, most: int
) -> int:
    """Return how many trainings ended before SHARE of the volume was there; `most` + 1 at most.

    `in_flight` of them are under way at any time; each takes one of `seconds`, drawn, and is told
    when it ends.
    """
    rng = np.random.default_rng(seed)
    under_way: list[tuple[float, int]] = []
    ended: list[int] = []
    now = 0.0
    while len(ended) < most:
        for place in asked.ask(in_flight - len(under_way)):
            heapq.heappush(under_way, (now + float(rng.choice(seconds)), place))
        if not under_way:
            break
        now, place = heapq.heappop(under_way)
        asked.tell(place)
        ended.append(place)
        if problem.share(ended) >= SHARE:
            return len(ended)
    return most + 1


def report(names: list[str], in_flight: list[int], seconds: np.ndarray, seeds: int) -> None:
    """Print the median over training seeds times draws of run times, and beside one at a time.

    The floor is counted likewise: which of those under way ends first is chance for it as well.
    """
    for name in names:
        table = load(name)
        for label, cases in (("mean of seeds", [mean_problem(table)]), ("each", problems(table))):
            print(f"{name}, {label}: trainings to {SHARE:.0%} with so many in flight", flush=True)
            for who, make in (("floor", Knowing), ("own", Own)):
                words, base = [], 0.0
                for count in in_flight:
                    middle = _middle(make, cases, count, seconds, seeds)
                    base = base or middle
                    words.append(f"{count}: {middle:g} ({middle / base:.2f}x)")
                print(f"  {who:<6} {'  '.join(words)}", flush=True)


def _middle(
    make: Callable[[Problem], Asked],
    cases: Sequence[Problem],
    count: int,
    seconds: np.ndarray,
    seeds: int,
) -> float:
    draws = range(1 if count == 1 else seeds)
    found = [trainings(p, make(p), count, seconds, seed, 200) for p in cases for seed in draws]
    return float(np.median(found))
