"""The searcher behind Optuna's interface, for the product's studies and for a user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import ThreadpoolController

from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.search.acquisition import FLOAT32, SMALLEST_GAP, Yardstick, yardstick
from policysearch.search.candidates import SpacePool, SpacePrices, price_of
from policysearch.search.goals import Goal, Left
from policysearch.search.objectives import UNCOUNTED, ObjectiveName, counted
from policysearch.search.searcher import Searcher
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.space.options import Row
from policysearch.space.space import Space
from policysearch.study.optuna_samplers import distributions

Price = Callable[[Policy], tuple[float, float] | None]
"""(step time, peak memory) of a policy over float32's; None where it has no price."""

AS_GOOD = 10.0 * SMALLEST_GAP
"""A gap in nats up to which a policy leaves nothing to be gained by slower ones."""


@dataclass(frozen=True)
class Observation:
    """A policy that was asked for: its parameters, and its values in the order of the objectives.

    No values while it is under way.
    """

    params: Params
    values: Sequence[float] = ()


class GainSampler(BaseSampler):
    """Samples the policy of `space` with the largest expected gain in dominated volume.

    The trials of the study have `objectives` as values, and all parameters of the space; prices
    come from `price`. `gap_of` makes nats of the value of the loss gap. `ladder` are policies whose
    prices set the corner that volumes are measured from. Trials that run count as expected to come
    out. It keeps prices, nothing else: equal studies give equal proposals.
    """

    def __init__(
        self,
        space: Space,
        price: Price,
        objectives: Sequence[ObjectiveName],
        ladder: Sequence[Policy] = (),
        gap_of: Callable[[float], float] = float,
        seed: int = 0,
        prices: SpacePrices | None = None,
        hints: NDArray[np.float64] | None = None,
    ) -> None:
        self.space, self._price, self._objectives = space, price, tuple(objectives)
        self._hints = hints
        self._gap_of, self._seed = gap_of, seed
        self._encoding = Encoding(space)
        self._pool = SpacePool(space, self._encoding, self._costs, seed, prices)
        self._random, self._blas = RandomSampler(seed=seed), ThreadpoolController()
        self._names = frozenset(space.choices())
        self._rows: dict[frozenset[tuple[str, Any]], Row] = {}
        priced = [costs for policy in ladder if (costs := self._axes(price(policy))) is not None]
        self._measure = yardstick(np.array(priced)) if priced else FLOAT32
        self._last: tuple[object, Searcher, float] = None, self._searcher(FLOAT32, ()), 0.0
        self.expected_share = np.inf
        """Expected gain of the latest proposal, as a share of the volume that was found."""
        self.expected_gap: tuple[float, ...] = ()
        """Gap of it in nats that is expected, and the ends of an interval for four in five."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return every decision of the space."""
        return distributions(self.space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        """Return the parameters of the policy to train next, none where there is no new one."""
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        return self.following(_observation(other) for other in others if self._counts(other))

    def following(
        self,
        known: Iterable[Observation],
        start: Iterable[Params] = (),
        goal: Goal | None = None,
    ) -> Params:
        """Return the parameters of the policy to train next, none where there is no new one.

        `start` are policies to begin with, those of them that are not asked for yet: `Searcher`
        weighs them, and asks for the `goal` beside the front.
        """
        with self._blas.limit(limits=1):  # more would change bits, and wait for cores that train
            searcher, volume = self._told(known, start, goal)
            proposals = searcher.ask()
            if proposals:
                gaps = searcher.predicted([proposals[0][0]])
                self.expected_gap = tuple(np.nan_to_num(gaps[0]).tolist())
        self.expected_share = searcher.expected_gain / volume if volume else np.inf
        return dict(self._pool.params_of(proposals[0][0])) if proposals else {}

    def left(
        self,
        known: Iterable[Observation],
        start: Iterable[Params] = (),
        goal: Goal | None = None,
    ) -> Left:
        """Return what may be left of the goal, or of the front; arguments as of `following`."""
        with self._blas.limit(limits=1):
            return self._told(known, start, goal)[0].left()

    def untrained(
        self, count: int
    ) -> list[tuple[Params, tuple[float, float], tuple[float, float, float]]]:
        """Return `count` policies that promise most before any is trained, or fewer.

        Each with time and memory over float32's, and the gap in nats that is expected of it with
        the ends of an interval that holds four in five.
        """
        with self._blas.limit(limits=1):
            searcher = self._searcher(self._measure, ())
            asked = searcher.ask(count)
            gaps = searcher.predicted([row for row, _ in asked])
        params = [dict(self._pool.params_of(row)) for row, _ in asked]
        pairs = zip(params, asked, gaps.tolist(), strict=True)
        return [(each, costs, (gap, low, high)) for each, (_, costs), (gap, low, high) in pairs]

    def _told(
        self, known: Iterable[Observation], start: Iterable[Params], goal: Goal | None
    ) -> tuple[Searcher, float]:
        """Return a searcher that is told what is known, and the volume of that."""
        rows = [(row, trial) for trial in known if (row := self._row(trial.params)) is not None]
        measure = self._yardstick(rows)
        ended = [(row, trial) for row, trial in rows if trial.values]
        state = measure, [(row, tuple(trial.values)) for row, trial in ended]
        if self._last[0] != state:
            volume = self._volume(measure, [trial for _, trial in ended])
            self._last = state, self._searcher(measure, ended), volume
        first = [(row, c) for row in map(self._row, start) if row and (c := self._pool.costs(row))]
        searcher, volume = self._last[1].copy(first, goal), self._last[2]
        for row, trial in rows:
            if not trial.values and (costs := self._pool.costs(row)) is not None:
                searcher.expect(row, costs)
        return searcher, volume

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Return a random value: of parameters that are not the space's, or once it is empty."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _searcher(self, measure: Yardstick, ended: Iterable[tuple[Row, Observation]]) -> Searcher:
        """Return a searcher that is told these."""
        of = self._encoding.decisions, self._pool, measure
        searcher = Searcher(*of, hints=self._hints, inner=self._measure, outer=FLOAT32)
        for row, trial in ended:
            self._learn(searcher, row, trial)
        return searcher

    def _learn(self, searcher: Searcher, row: Row, trial: Observation) -> None:
        """Tell the searcher of a trial; parameters may only be the nearest to what it trained."""
        costs = self._pool.costs(row)
        measured = self._measured_costs(trial)
        if costs is not None and all(map(_same, costs, measured)):
            searcher.tell(row, costs, self._gap(trial))
        else:
            searcher.tell_outside(measured, self._gap(trial))

    def _measured_costs(self, trial: Observation) -> tuple[float, float]:
        """Return (time, memory) of a trial by its values; infinite time where it has no price."""
        values = dict(zip(self._objectives, trial.values, strict=True))
        speedup = values.get("speedup", 2.0)
        return 1.0 / speedup if speedup > 0.0 else np.inf, values.get("memory_ratio", UNCOUNTED)

    def _volume(self, measure: Yardstick, trials: Sequence[Observation]) -> float:
        if not trials:
            return 0.0
        gaps = np.array([self._gap(trial) for trial in trials])
        return measure.volume(gaps, np.array([self._measured_costs(trial) for trial in trials]))

    def _counts(self, trial: FrozenTrial) -> bool:
        return trial.state in (TrialState.COMPLETE, TrialState.RUNNING)

    def _row(self, params: Params) -> Row | None:
        if not params.keys() >= self._names:
            return None
        key = frozenset(params.items())  # The same few, again and again.
        if key not in self._rows:
            self._rows[key] = self._pool.add(dict(params))
        return self._rows[key]

    def _gap(self, trial: Observation) -> float:
        return self._gap_of(trial.values[self._objectives.index("loss_gap")])

    def _yardstick(self, rows: Sequence[tuple[Row, Observation]]) -> Yardstick:
        """Return the ladder's yardstick once a policy within its corner is as good as float32."""
        corner = self._measure
        for _, trial in rows:
            if trial.values and self._gap(trial) <= AS_GOOD:
                time, memory = self._measured_costs(trial)
                if time < corner.time and memory < corner.memory:
                    return corner
        return FLOAT32

    def _costs(self, params: Params) -> tuple[float, float] | None:
        return self._axes(self._price(self.space.policy(params)))

    def _axes(self, costs: tuple[float, float] | None) -> tuple[float, float] | None:
        return costs and counted(*costs, self._objectives)


def _same(cost: float, measured: float) -> bool:
    return math.isclose(cost, measured, rel_tol=1e-6)


def _observation(trial: FrozenTrial) -> Observation:
    # A trial that was enqueued and has suggested nothing yet says what it will be.
    params = trial.params or trial.system_attrs.get("fixed_params", {})
    return Observation(params, trial.values or ())


def sampler_of(
    objective: Objective,
    space: Space,
    names: Sequence[ObjectiveName],
    baseline: str | None,
    seed: int,
    gap_of: Callable[[float], float] = float,
    hints: NDArray[np.float64] | None = None,
) -> GainSampler:
    """Return the sampler of `space` with the prices of `objective`, drawn from with `seed`.

    It weighs policies by the objectives `names` from the corner of the ladder, `baseline` in it.
    """
    ladder = [
        policy for policy, presets in space.ladder(baseline).values() if "float32" not in presets
    ]
    # Tables and estimates are of both costs; where one does not count policies are priced singly.
    both = {"speedup", "memory_ratio"} <= set(names)
    prices = SpacePrices(objective, space, seed) if both else None
    price = partial(price_of, objective)
    return GainSampler(space, price, names, ladder, gap_of, seed, prices, hints)
