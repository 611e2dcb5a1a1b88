"""Published searches for precisions, as their papers have them, over the decisions of a table.

Each yields the places that it trains and then reads what they were told; nothing trained twice is
charged twice. Where a method wants a budget it is run for a row of them, so that it gives a front.
What is an integer program is solved by listing every policy of the table with its exact price.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from benchmarks.search.tables import Problem, Table
from policysearch.search.hypervolume import Array, non_dominated

GAPS = tuple(float(gap) for gap in np.geomspace(0.05, 1e-4, 9))
"""Loss gaps in nats that methods with a budget are run for, over the largest of the table."""

EPISODES = 400
RATE = 0.5

Row = tuple[int, ...]
Rival = Callable[[Problem, np.random.Generator], Iterator[int]]


def budgets(table: Table) -> list[float]:
    """Return the gaps in nats that methods with a budget are run for, the widest first."""
    return [gap * table.measure.largest_gap / GAPS[0] for gap in GAPS]


class _Places:
    """Places by row; of policies that are the same, the first. Modifiers are their usual value."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.width = len(table.decisions.places)
        self._found: dict[Row, int] = {}
        for place, row in enumerate(table.rows.tolist()):
            self._found.setdefault(tuple(row), place)
        self.plain = tuple(
            next(i for i, option in enumerate(options) if option.exact)
            for options in table.decisions.places
        )

    def find(self, options: Sequence[int]) -> int | None:
        """Return the place of a policy of these options; None where the study has none such."""
        return self._found.get((*options, *(0 for _ in self.table.decisions.modifiers)))

    def nearest(self, options: Sequence[int]) -> int:
        """Return the place of the policy with the most of these options."""
        place = self.find(options)
        if place is not None:
            return place
        alike = (self.table.rows[:, : self.width] == np.array(options)).sum(axis=1)
        return int(alike.argmax())

    def with_one(self, place: int, option: int) -> list[int]:
        return [option if i == place else each for i, each in enumerate(self.plain)]


def one_at_a_time(problem: Problem, rng: np.random.Generator) -> Iterator[int]:
    """AIMET's automatic mixed precision: each decision alone, then flips from the least harmful on.

    Flips are ordered by the gap they alone make over the time they alone save, and kept.
    """
    table, places = problem.table, _Places(problem.table)
    flips = []
    for place, option in table.decisions.counted():
        at = places.find(places.with_one(place, option))
        if at is None:
            continue
        yield at
        saved = float(1.0 - table.costs[at, 0])
        if saved > 0.0:
            flips.append((max(float(problem.told[at]), 0.0) / saved, -saved, place, option))
    waiting = sorted(flips)
    while waiting:  # Flips that no policy of the study has together wait for the next row.
        options, left = list(places.plain), []
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


def _program(problem: Problem, errors: Array) -> Iterator[int]:
    """Yield the policies that are cheapest within some bound on the summed error.

    Every solution of the integer program, for any bound and any mix of the two costs: the ends
    first, then always the middle of the longest stretch that is left.
    """
    table = problem.table
    counted = table.decisions.counted()
    taken = np.array([table.rows[:, place] == option for place, option in counted], dtype=float).T
    total = taken @ np.where(np.isfinite(errors), errors, 0.0)
    points = np.column_stack([total, table.costs])
    best = non_dominated([tuple(point) for point in points.tolist()])
    best = sorted(best, key=lambda place: total[place])
    stretches = deque([(0, len(best) - 1)])
    yield from (best[0], best[-1])
    while stretches:
        low, high = stretches.popleft()
        middle = (low + high) // 2
        if low < middle:
            yield best[middle]
            stretches += [(low, middle), (middle, high)]


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


def _alone(problem: Problem, places: _Places) -> Iterator[int]:
    for place, option in problem.table.decisions.counted():
        at = places.find(places.with_one(place, option))
        if at is not None:
            yield at


def bisection(problem: Problem, rng: np.random.Generator) -> Iterator[int]:
    """Layers ordered by the gap each makes alone; per option and gap, bisection of how many."""
    table, places = problem.table, _Places(problem.table)
    yield from _alone(problem, places)
    for option in range(max(len(options) for options in table.decisions.places)):
        found = {
            place: float(problem.told[at])
            for place, options in enumerate(table.decisions.places)
            if option < len(options) and not options[option].exact
            if (at := places.find(places.with_one(place, option))) is not None
        }
        order = sorted(found, key=lambda place: found[place])
        for budget in budgets(table):
            low, high = 0, len(order)
            while low < high:
                count = (low + high + 1) // 2
                options = list(places.plain)
                for place in order[:count]:
                    options[place] = option
                at = places.find(options)
                if at is not None:
                    yield at
                within = at is not None and problem.told[at] <= budget
                low, high = (count, high) if within else (low, count - 1)


def delta_debugging(problem: Problem, rng: np.random.Generator) -> Iterator[int]:
    """Precimonious: per gap and option, the smallest set of layers that must stay float32."""
    table, places = problem.table, _Places(problem.table)
    for budget in budgets(table):
        for option in range(max(len(options) for options in table.decisions.places)):
            able = [
                place
                for place, options in enumerate(table.decisions.places)
                if option < len(options) and not options[option].exact
            ]
            yield from _reduced(problem, places, able, option, budget)


def _reduced(
    problem: Problem, places: _Places, able: list[int], option: int, budget: float
) -> Iterator[int]:
    """Zeller's ddmin over the layers kept in float32."""
    kept, parts = list(able), 1
    while kept:
        chunks = [part.tolist() for part in np.array_split(kept, parts)]
        without = [[place for place in kept if place not in chunk] for chunk in chunks]
        for trial in [*without, *(chunks if parts > 2 else [])]:
            options = [
                option if place in able and place not in trial else plain
                for place, plain in enumerate(places.plain)
            ]
            at = places.find(options)
            if at is None:
                continue
            yield at
            if problem.told[at] <= budget:
                kept, parts = trial, max(parts - 1, 1)
                break
        else:
            if parts >= len(kept):
                return
            parts = min(len(kept), 2 * parts)


def policy_gradient(problem: Problem, rng: np.random.Generator) -> Iterator[int]:
    """Reinforcement learning as HAQ and AutoQ: an agent picks the option of each place in turn.

    REINFORCE over a softmax per place. A time budget is drawn per episode; where the policy is over
    it, options are moved to the cheapest in order. The reward is the gap on its scale, negative.
    """
    table, places = problem.table, _Places(problem.table)
    logits = [np.zeros(len(options)) for options in table.decisions.places]
    cheapest = table.rows[int(table.costs[:, 0].argmin()), : places.width]
    mean = 0.0
    for episode in range(EPISODES):
        chances = [np.exp(each - each.max()) for each in logits]
        drawn = [int(rng.choice(len(c), p=c / c.sum())) for c in chances]
        budget = rng.uniform(table.costs[:, 0].min(), 1.0)
        for place in range(places.width):
            if table.costs[places.nearest(drawn), 0] <= budget:
                break
            drawn[place] = int(cheapest[place])
        at = places.nearest(drawn)
        yield at
        reward = -float(table.measure.scaled(problem.told[[at]])[0])
        mean = reward if not episode else 0.9 * mean + 0.1 * reward
        for place, option in enumerate(table.rows[at, : places.width].tolist()):
            chance = chances[place] / chances[place].sum()
            logits[place] += RATE * (reward - mean) * (np.eye(len(chance))[option] - chance)


RIVALS: Mapping[str, Rival] = MappingProxyType(
    {
        "one-at-a-time": one_at_a_time,
        "loss-error": loss_error,
        "divergences": divergences,
        "fisher": fisher,
        "bisection": bisection,
        "delta-debugging": delta_debugging,
        "policy-gradient": policy_gradient,
    }
)
SCORED = ("loss-error", "divergences", "fisher")
"""Those that need what the table of a task that can be run has alone."""
