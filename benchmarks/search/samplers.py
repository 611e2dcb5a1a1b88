"""The searches compared, each asking for policies of a table one by one."""

from __future__ import annotations

import warnings
from typing import Protocol

import numpy as np
import optuna
from optuna.trial import TrialState

from benchmarks.search.tables import Table
from policysearch.search.samplers import sampler_named
from policysearch.search.searcher import Listed, Searcher

PATIENCE = 3
"""So many known policies in a row, then one at random: as a study does it."""


class Search(Protocol):
    """Asks for places of a table and is told their gaps."""

    def ask(self, count: int) -> list[int]:
        """Return places that were not asked for before."""
        ...

    def tell(self, place: int, gap: float) -> None:
        """Learn the gap of a place that was asked for."""
        ...


class Own:
    """The searcher of this package."""

    def __init__(self, table: Table) -> None:
        self._table = table
        _, first = np.unique(table.rows, axis=0, return_index=True)
        kept = np.sort(first)  # Of policies that are the same, the first.
        kept = kept[~table.exact[kept]]
        listed = Listed(table.rows[kept], table.costs[kept])
        self._places = {tuple(table.rows[i].tolist()): int(i) for i in kept}
        start = [(tuple(table.rows[i].tolist()), self._costs(i)) for i in table.start]
        self._searcher = Searcher(table.decisions, listed, table.measure, start)

    def _costs(self, place: int) -> tuple[float, float]:
        time, memory = self._table.costs[place].tolist()
        return time, memory

    def ask(self, count: int) -> list[int]:
        return [self._places[row] for row, _ in self._searcher.ask(count)]

    def tell(self, place: int, gap: float) -> None:
        row = tuple(self._table.rows[place].tolist())
        self._searcher.tell(row, self._costs(place), gap)


class Stock:
    """A sampler of Optuna on the raw decisions, with the ladder first where `ladder`."""

    def __init__(self, table: Table, sampler: str, seed: int, ladder: bool) -> None:
        self._table = table
        self._sampler, self._random = sampler_named(sampler, seed), sampler_named("random", seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study = optuna.create_study(directions=["minimize"] * 3, sampler=self._sampler)
        self._choices = [int(column.max()) + 1 for column in table.raw.T]
        self._places = {tuple(row): i for i, row in enumerate(table.raw.tolist())}
        self._known: set[int] = set()
        self._running: dict[int, optuna.Trial] = {}
        for place in table.start if ladder else ():
            self._study.enqueue_trial(
                dict(zip(self._names, table.raw[place].tolist(), strict=True))
            )

    @property
    def _names(self) -> list[str]:
        return [f"d{i}" for i in range(len(self._choices))]

    def ask(self, count: int) -> list[int]:
        found: list[int] = []
        streak = 0
        while len(found) < count and len(self._known) < len(self._places):
            self._study.sampler = self._random if streak >= PATIENCE else self._sampler
            trial = self._study.ask()
            row = [
                trial.suggest_categorical(name, list(range(size)))
                for name, size in zip(self._names, self._choices, strict=True)
            ]
            place = self._places[tuple(int(str(value)) for value in row)]
            if place in self._known:
                self._study.tell(trial, state=TrialState.FAIL)
                streak += 1
                continue
            self._known.add(place)
            self._running[place] = trial
            found.append(place)
            streak = 0
        return found

    def tell(self, place: int, gap: float) -> None:
        table = self._table
        values = table.measure.points(np.array([gap]), table.costs[[place]])[0].tolist()
        self._study.tell(self._running.pop(place), values)


def make(name: str, table: Table, seed: int) -> Search:
    """Return the search called "own", or a sampler of Optuna, "+ladder" for the ladder first."""
    if name == "own":
        return Own(table)
    sampler, _, ladder = name.partition("+")
    return Stock(table, sampler, seed, bool(ladder))
