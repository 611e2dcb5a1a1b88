"""The searches compared, one interface: each yields what it has spent and found, step by step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import optuna
from optuna.samplers import BaseSampler, NSGAIIISampler
from optuna.trial import TrialState

from benchmarks.search.rivals import RIVALS
from benchmarks.search.runs import RunSearcher
from benchmarks.search.tables import Problem, Table
from policysearch.search.acquisition import FLOAT32
from policysearch.search.goals import Goal
from policysearch.search.hypervolume import Array, non_dominated
from policysearch.search.searcher import Listed, Searcher
from policysearch.space.options import Row
from policysearch.study.optuna_samplers import sampler_named

PATIENCE = 3
"""So many known policies in a row, then one at random: as a study does it."""

OWN = ("own", "own+probes", "own+short", "own+seeds")


@dataclass(frozen=True)
class Step:
    """What a search has spent, in trainings, and the places of the policies that it has found."""

    cost: float
    found: tuple[int, ...]


def steps_within(
    problem: Problem, name: str, seed: int, most: float, batch: int = 1
) -> Iterator[Step]:
    """Yield the steps of a search until it has spent more than `most` trainings."""
    return takewhile(lambda step: step.cost <= most, steps(problem, name, seed, batch))


def steps(problem: Problem, name: str, seed: int, batch: int = 1) -> Iterator[Step]:
    """Yield the steps of a search called `name`; see `python -m benchmarks.search --help`."""
    if name in ("own+short", "own+seeds"):
        yield from _own_runs(problem, name == "own+short")
        return
    start = 0.0
    if name in ("own", "own+probes"):
        hints = _hints(problem) if name == "own+probes" else None
        start = problem.table.errors_cost if hints is not None else 0.0
        places = _own(problem, batch, hints)
    elif name in RIVALS:
        places = RIVALS[name](problem, np.random.default_rng(seed))
    else:
        sampler, _, ladder = name.partition("+")
        places = _stock(problem, sampler, seed, batch, bool(ladder))
    trained: dict[int, None] = {}
    for place in places:
        if not problem.table.exact[place]:
            trained.setdefault(place)
        yield Step(start + len(trained), tuple(trained))


class Choice:
    """The searcher of this package over a table: the first of policies that are the same."""

    def __init__(self, table: Table, hints: Array | None = None) -> None:
        _, first = np.unique(table.rows, axis=0, return_index=True)
        kept = np.sort(first)
        kept = kept[~table.exact[kept]]
        self._table, self._hints = table, hints
        self._listed = Listed(table.rows[kept], table.costs[kept])
        self.places = {tuple(table.rows[i].tolist()): int(i) for i in kept}

    def costs(self, place: int) -> tuple[float, float]:
        time, memory = self._table.costs[place].tolist()
        return time, memory

    def searcher(self, goal: Goal | None = None) -> Searcher:
        table = self._table
        start = [(self.row(i), self.costs(i)) for i in table.start if not table.exact[i]]
        of = table.decisions, self._listed, table.measure, start, self._hints
        return Searcher(*of, goal=goal, outer=FLOAT32)

    def row(self, place: int) -> Row:
        return tuple(self._table.rows[place].tolist())


def _hints(problem: Problem) -> Array | None:
    errors = problem.table.errors
    if errors is None:
        return None
    return np.asarray(errors.mean(axis=0) if problem.seed is None else errors[problem.seed])


def _own(problem: Problem, batch: int, hints: Array | None) -> Iterator[int]:
    choice = Choice(problem.table, hints)
    searcher = choice.searcher()
    while asked := searcher.ask(batch):
        yield from (choice.places[row] for row, _ in asked)
        for row, costs in asked:
            searcher.tell(row, costs, float(problem.told[choice.places[row]]))


def _own_runs(problem: Problem, short: bool) -> Iterator[Step]:
    """Runs of one training seed, a quarter of the steps first; or whole ones, of several seeds."""
    table, choice = problem.table, Choice(problem.table)
    first = problem.seed or 0
    seeds = [first, *(s for s in range(len(table.gaps)) if s != first)]
    share = table.short(first) if short else 1.0
    places = len(table.decisions.places)
    seeds = seeds[:1] if short else seeds
    running = RunSearcher(choice.searcher, places, table.measure, seeds, share)
    spent: dict[tuple[Row, int], float] = {}
    while asked := running.ask():
        (run,) = asked
        place = choice.places[run.row]
        gaps = table.curve(run.seed, place) if share < 1.0 else {}
        gaps[1.0] = float(problem.told[place] if short else table.gaps[run.seed, place])
        running.tell(run, {share: gap for share, gap in gaps.items() if share <= run.share})
        spent[run.row, run.seed] = run.share
        found = tuple(choice.places[row] for row in running.proposed())
        yield Step(sum(spent.values()), found)


def _sampler(name: str, seed: int) -> BaseSampler:
    if name == "nsga3":
        return NSGAIIISampler(seed=seed, population_size=16)
    return sampler_named(name, seed)


def _stock(problem: Problem, name: str, seed: int, batch: int, ladder: bool) -> Iterator[int]:
    """A sampler of Optuna on the raw decisions, with the ladder first where `ladder`."""
    table = problem.table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        chosen, at_random = _sampler(name, seed), sampler_named("random", seed)
        study = optuna.create_study(directions=["minimize"] * 3, sampler=chosen)
    sizes = {f"d{i}": int(column.max()) + 1 for i, column in enumerate(table.raw.T)}
    places = {tuple(row): i for i, row in enumerate(table.raw.tolist())}
    for place in table.start if ladder else ():
        study.enqueue_trial(dict(zip(sizes, table.raw[place].tolist(), strict=True)))
    known: set[int] = set()
    while len(known) < len(places):
        running: dict[int, optuna.Trial] = {}
        streak = 0
        while len(running) < batch and len(known) < len(places):
            study.sampler = at_random if streak >= PATIENCE else chosen
            trial = study.ask()
            row = [trial.suggest_categorical(k, list(range(size))) for k, size in sizes.items()]
            place = places[tuple(int(str(value)) for value in row)]
            streak += 1
            if place in known:
                study.tell(trial, state=TrialState.FAIL)
                continue
            known.add(place)
            running[place], streak = trial, 0
        yield from running
        for place, trial in running.items():
            gap = problem.told[[place]]
            study.tell(trial, table.measure.points(gap, table.costs[[place]])[0].tolist())


def front(problem: Problem, found: tuple[int, ...]) -> list[int]:
    """Return those of the places that are best by what was told."""
    table, places = problem.table, list(found)
    points = table.measure.points(problem.told[places], table.costs[places])
    return [places[i] for i in non_dominated([tuple(point) for point in points.tolist()])]
