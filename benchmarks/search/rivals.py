"""Published searches for precisions, as their papers have them, over the decisions of a table.

Each yields the places that it trains and then reads what they were told; nothing trained twice is
charged twice. Where a method wants a budget it is run for a row of them, so that it gives a front.
What is an integer program is solved by listing every policy of the table with its exact price.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from benchmarks.search.tables import Problem
from policysearch.search.acquisition import Yardstick
from policysearch.search.hypervolume import Array, non_dominated
from policysearch.space.options import Decisions

GAPS = tuple(float(gap) for gap in np.geomspace(0.05, 1e-4, 9))
"""Loss gaps in nats that methods with a budget are run for, over the largest of the table."""

EPISODES = 400
RATE = 0.5

Row = tuple[int, ...]
Rival = Callable[[Problem, np.random.Generator], Iterator[int]]
Searching = Callable[["Places", np.random.Generator], Iterator[int]]


def budgets(measure: Yardstick) -> list[float]:
    """Return the gaps in nats that methods with a budget are run for, the widest first."""
    return [gap * measure.largest_gap / GAPS[0] for gap in GAPS]


class Places(Protocol):
    """The policies that a method may train, by number: what it asks, and is told."""

    decisions: Decisions
    measure: Yardstick

    def find(self, options: Sequence[int]) -> int | None:
        """Return the place of a policy of these options; None where the study has none such."""

    def nearest(self, options: Sequence[int]) -> int:
        """Return the place of the policy with the most of these options."""

    def options(self, place: int) -> list[int]:
        """Return the options of the policy at a place."""

    def time(self, place: int) -> float:
        """Return its modeled time over float32's."""

    def gap(self, place: int) -> float:
        """Return its gap in nats, which it is trained for."""

    def cheapest(self) -> int:
        """Return the place of the fastest policy there is."""


def plain(decisions: Decisions) -> tuple[int, ...]:
    """Return the options of float32."""
    return tuple(
        next(i for i, option in enumerate(options) if option.exact) for options in decisions.places
    )


def with_one(places: Places, place: int, option: int) -> int | None:
    """Return the place of the policy that decides one thing as no float32; None for none."""
    usual = plain(places.decisions)
    return places.find([option if i == place else each for i, each in enumerate(usual)])


class Tabled:
    """Places of a table; of policies that are the same, the first. Modifiers are as usual."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.table = problem, problem.table
        self.decisions, self.measure = self.table.decisions, self.table.measure
        self._found: dict[Row, int] = {}
        for place, row in enumerate(self.table.rows.tolist()):
            self._found.setdefault(tuple(row), place)

    def find(self, options: Sequence[int]) -> int | None:
        return self._found.get((*options, *(0 for _ in self.decisions.modifiers)))

    def nearest(self, options: Sequence[int]) -> int:
        place = self.find(options)
        if place is not None:
            return place
        alike = (self.table.rows[:, : len(options)] == np.array(options)).sum(axis=1)
        return int(alike.argmax())

    def options(self, place: int) -> list[int]:
        found: list[int] = self.table.rows[place, : len(self.decisions.places)].tolist()
        return found

    def time(self, place: int) -> float:
        return float(self.table.costs[place, 0])

    def gap(self, place: int) -> float:
        return float(self.problem.told[place])

    def cheapest(self) -> int:
        return int(self.table.costs[:, 0].argmin())


def one_at_a_time(places: Places, rng: np.random.Generator) -> Iterator[int]:
    """AIMET's automatic mixed precision: each decision alone, then flips from the least harmful on.

    Flips are ordered by the gap they alone make over the time they alone save, and kept.
    """
    flips = []
    for place, option in places.decisions.counted():
        at = with_one(places, place, option)
        if at is None:
            continue
        yield at
        saved = 1.0 - places.time(at)
        if saved > 0.0:
            flips.append((max(places.gap(at), 0.0) / saved, -saved, place, option))
    waiting, start = sorted(flips), plain(places.decisions)
    while waiting:  # Flips that no policy of the study has together wait for the next row.
        options, left = list(start), []
        for flip in waiting:
            _, _, place, option = flip
            tried = [option if i == place else each for i, each in enumerate(options)]
            at = places.find(tried)
            if at is None:
                left.append(flip)
                continue
            yield at
            options = tried
        waiting = left if len(left) < len(waiting) else []


def within_bounds(errors: Array, costs: Array) -> Iterator[int]:
    """Yield the places of policies that are cheapest within some bound on the summed error.

    Of policies with these `errors` [n] and `costs` [n, 2] every solution of the integer program,
    for any bound and any mix of the two costs: the ends first, then always the middle of the
    longest stretch that is left.
    """
    points = np.column_stack([errors, costs])
    best = non_dominated([tuple(point) for point in points.tolist()])
    best = sorted(best, key=lambda place: errors[place])
    stretches = deque([(0, len(best) - 1)])
    yield from (best[0], best[-1])
    while stretches:
        low, high = stretches.popleft()
        middle = (low + high) // 2
        if low < middle:
            yield best[middle]
            stretches += [(low, middle), (middle, high)]


def _program(problem: Problem, errors: Array) -> Iterator[int]:
    """Yield the policies that are cheapest within some bound on the error summed up."""
    table = problem.table
    counted = table.decisions.counted()
    taken = np.array([table.rows[:, place] == option for place, option in counted], dtype=float).T
    yield from within_bounds(taken @ np.where(np.isfinite(errors), errors, 0.0), table.costs)


def _score(problem: Problem, name: str) -> Array:
    scores = problem.table.scores[name]
    return np.asarray(scores.mean(axis=0) if problem.seed is None else scores[problem.seed])


def loss_error(problem: Problem, rng: np.random.Generator) -> Iterator[int]:
    """Summed squared loss errors and an integer program (arXiv 2505.13060)."""
    yield from _program(problem, _score(problem, "loss"))


def divergences(problem: Problem, rng: np.random.Generator) -> Iterator[int]:
    """SNIP: loss divergence and weight divergence, each over its mean, and an integer program."""
    assert problem.table.probes is not None
    probes = problem.table.probes
    weights = np.exp(probes.mean(axis=0) if problem.seed is None else probes[problem.seed])
    loss = np.sqrt(_score(problem, "loss"))
    both = [np.sqrt(weights) / np.nanmean(np.sqrt(weights)), loss / np.nanmean(loss)]
    yield from _program(problem, np.asarray(both[0] + both[1]))


def fisher(problem: Problem, rng: np.random.Generator) -> Iterator[int]:
    """The Fisher score, squared gradients times squared rounding, and an integer program."""
    yield from _program(problem, _score(problem, "fisher"))


def _options(decisions: Decisions) -> range:
    return range(max(len(options) for options in decisions.places))


def _able(decisions: Decisions, option: int) -> list[int]:
    """Return what may have an option that is no float32's."""
    every = enumerate(decisions.places)
    return [i for i, options in every if option < len(options) and not options[option].exact]


def bisection(places: Places, rng: np.random.Generator) -> Iterator[int]:
    """Layers ordered by the gap each makes alone; per option and gap, bisection of how many."""
    alone = {pair: with_one(places, *pair) for pair in places.decisions.counted()}
    yield from (at for at in alone.values() if at is not None)
    for option in _options(places.decisions):
        each = ((i, with_one(places, i, option)) for i in _able(places.decisions, option))
        found = {place: places.gap(at) for place, at in each if at is not None}
        order = sorted(found, key=lambda place: found[place])
        for budget in budgets(places.measure):
            low, high = 0, len(order)
            while low < high:
                count = (low + high + 1) // 2
                options = list(plain(places.decisions))
                for place in order[:count]:
                    options[place] = option
                at = places.find(options)
                if at is not None:
                    yield at
                within = at is not None and places.gap(at) <= budget
                low, high = (count, high) if within else (low, count - 1)


def delta_debugging(places: Places, rng: np.random.Generator) -> Iterator[int]:
    """Precimonious: per gap and option, the smallest set of layers that must stay float32."""
    for budget in budgets(places.measure):
        for option in _options(places.decisions):
            yield from _reduced(places, _able(places.decisions, option), option, budget)


def _reduced(places: Places, able: list[int], option: int, budget: float) -> Iterator[int]:
    """Zeller's ddmin over the layers kept in float32."""
    kept, parts = list(able), 1
    while kept:
        chunks = [part.tolist() for part in np.array_split(kept, parts)]
        without = [[place for place in kept if place not in chunk] for chunk in chunks]
        for trial in [*without, *(chunks if parts > 2 else [])]:
            options = [
                option if place in able and place not in trial else usual
                for place, usual in enumerate(plain(places.decisions))
            ]
            at = places.find(options)
            if at is None:
                continue
            yield at
            if places.gap(at) <= budget:
                kept, parts = trial, max(parts - 1, 1)
                break
        else:
            if parts >= len(kept):
                return
            parts = min(len(kept), 2 * parts)


def policy_gradient(places: Places, rng: np.random.Generator) -> Iterator[int]:
    """Reinforcement learning as HAQ and AutoQ: an agent picks the option of each place in turn.

    REINFORCE over a softmax per place. A time budget is drawn per episode; where the policy is over
    it, options are moved to the cheapest in order. The reward is the gap on its scale, negative.
    """
    logits = [np.zeros(len(options)) for options in places.decisions.places]
    fastest = places.cheapest()
    cheapest = places.options(fastest)
    mean = 0.0
    for episode in range(EPISODES):
        chances = [np.exp(each - each.max()) for each in logits]
        drawn = [int(rng.choice(len(c), p=c / c.sum())) for c in chances]
        budget = rng.uniform(places.time(fastest), 1.0)
        for place, option in enumerate(cheapest):
            if places.time(places.nearest(drawn)) <= budget:
                break
            drawn[place] = option
        at = places.nearest(drawn)
        yield at
        reward = -float(places.measure.scaled(np.array([places.gap(at)]))[0])
        mean = reward if not episode else 0.9 * mean + 0.1 * reward
        for place, option in enumerate(places.options(at)):
            chance = chances[place] / chances[place].sum()
            logits[place] += RATE * (reward - mean) * (np.eye(len(chance))[option] - chance)


def _tabled(method: Searching) -> Rival:
    return lambda problem, rng: method(Tabled(problem), rng)


SEARCHING: Mapping[str, Searching] = MappingProxyType(
    {
        "one-at-a-time": one_at_a_time,
        "bisection": bisection,
        "delta-debugging": delta_debugging,
        "policy-gradient": policy_gradient,
    }
)
"""Those that learn from what they train alone."""

RIVALS: Mapping[str, Rival] = MappingProxyType(
    {
        "loss-error": loss_error,
        "divergences": divergences,
        "fisher": fisher,
        **{name: _tabled(method) for name, method in SEARCHING.items()},
    }
)
SCORED = ("loss-error", "divergences", "fisher")
"""Those that need what the table of a task that can be run has alone."""
