"""The low-fidelity evaluations of a study: asked for, run, and what is promoted by them.

Which policy is evaluated depends on what ended before it alone; each is recorded before its run,
with how many had ended. So a study that was stopped goes on with the same policies. To train few
policies whole and many a little is successive halving's idea (Jamieson and Talwalkar, AISTATS
2016); here a searcher chooses them, and whole runs must agree before any is trusted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from policysearch.files import make_folder
from policysearch.search.acquisition import FLOAT32, yardstick
from policysearch.search.fidelity import RUNS_PER_PLACE, promising
from policysearch.space.encoding import Encoding
from policysearch.space.space import Space
from policysearch.study.journal.records import Asked, RunKey
from policysearch.study.optuna_view import History, params_of, trial_view
from policysearch.study.plan import SearchPlan
from policysearch.study.proposer import Proposer
from policysearch.study.results.fidelity import LowFidelityRun, LowFidelityRuns, Prices, trusted
from policysearch.study.runs import Runs
from policysearch.study.workers.executors import Executor, Job


class LowFidelitySearch:
    """Asks for low-fidelity evaluations, is told how they end, and says what they promote."""

    def __init__(
        self,
        plan: SearchPlan,
        runs: Runs,
        space: Space,
        prices: Prices,
        proposer: Proposer,
        in_order: bool,
    ) -> None:
        self._plan, self._runs, self._space, self._prices = plan, runs, space, prices
        self._proposer, self._in_order, self._records = proposer, in_order, runs.records
        self._evaluations: LowFidelityRuns | None = None
        if plan.fidelity is not None:
            what = self._records, plan.fidelity, plan.objectives
            self._evaluations = LowFidelityRuns(*what, runs.float32.digest, prices)
        self._ready = deque(self._records.low_fidelity.values())
        self._keys: list[RunKey] = []
        self._ended = False

    def train(self, executor: Executor) -> Iterator[None]:
        """Train what is missing, float32's runs first; yield after each run."""
        runs, evaluations = self._runs, self._evaluations
        if evaluations is None:
            return
        references = {evaluations.reference} - self._records.runs.keys()
        missing = runs.missing_float32() | dict.fromkeys(references, runs.float32)
        for key, outcome in runs.trained(executor, missing):
            self._records.add_run(key, outcome)
            yield
        if evaluations.learns:
            if runs.folder is not None:
                make_folder(runs.folder)
            for index, outcome in executor.run(self._jobs(evaluations)):
                self._records.add_run(self._keys[index], outcome)
                yield

    @cached_property
    def _most(self) -> int:
        return RUNS_PER_PLACE * len(Encoding(self._space).decisions.places)

    def _jobs(self, evaluations: LowFidelityRuns) -> Iterator[Job | None]:
        while True:
            if self._ready:
                asked = self._ready.popleft()
                key = evaluations.key(asked)
                if key not in self._records.runs and key not in self._keys:
                    self._keys.append(key)
                    yield self._runs.job(key, asked.policy)
            elif (following := self._next(evaluations)) is not None:
                self._records.add_low_fidelity(following)
                self._ready.append(following)
            elif self._ended:
                return
            else:
                yield None

    def _next(self, evaluations: LowFidelityRuns) -> Asked | None:
        """Return the policy to evaluate; None where there is none now, or none any more."""
        asked = list(self._records.low_fidelity.values())
        ended = evaluations.ended(self._in_order)
        count = len(ended)
        if self._in_order:
            count = max(0, len(asked) - self._plan.workers + 1)
            if count > len(ended):
                return None
        runs = evaluations.of(ended[:count])
        enough = len(asked) >= self._most or not trusted(runs)
        following = None if enough else self._proposal(asked, runs)
        self._ended = following is None
        return following

    def _proposal(self, asked: Sequence[Asked], runs: Sequence[LowFidelityRun]) -> Asked | None:
        """Return the next policy of the ladder or the sampler, which is shown these `runs`."""
        history = History(self._plan.objectives)
        for run in runs:
            params, cost = params_of(run.asked, self._space), self._prices(run.asked)
            history.append(trial_view(params, run.short, cost))
        ended = {run.asked.digest for run in runs}
        pending = [params_of(each, self._space) for each in asked if each.digest not in ended]
        known = {self._runs.float32.digest, *(each.digest for each in asked)}
        shown = history.shown(len(runs))
        proposal = self._proposer.propose(len(asked), shown, pending, known, whole=True)
        return replace(proposal[0], told=len(runs)) if proposal else None

    def promised(self, trials: Collection[str]) -> list[Asked]:
        """Return what is promoted, the most promising first, once the `trials` are known.

        Nothing where low fidelity does not rank policies as whole runs do.
        """
        if self._evaluations is None:
            return []
        runs = self._evaluations.of(self._evaluations.ended(), trials)
        if not runs or not trusted(runs):
            return []
        costs = np.array([run.costs for run in runs])
        ladder = [place for place, run in enumerate(runs) if run.asked.start]
        measure = yardstick(costs[ladder]) if ladder else FLOAT32
        gaps = np.array([run.short for run in runs])
        return [runs[place].asked for place in promising(measure, gaps, costs)]

    @property
    def trials(self) -> int:
        """How many trials the evaluations are worth, rounded up."""
        if self._evaluations is None:
            return 0
        whole = self._evaluations.fidelity.worth * len(self._records.low_fidelity)
        return math.ceil(whole / len(self._runs.searched))
