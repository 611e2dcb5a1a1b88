"""One run of a study: policies asked for, trained, and recorded with what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from optuna.trial import TrialState

from policysearch.objective import DIVERGED_GAP, JITTER, Failure, Objective, Outcome
from policysearch.policy.policy import Policy, from_json
from policysearch.search.confirm import Horizon
from policysearch.search.executors import Executor, Job
from policysearch.search.gain_sampler import GainSampler, gain_sampler
from policysearch.search.parallel_space import spread_space
from policysearch.search.prices import Prices
from policysearch.search.records import Asked, Records, RunKey, compact, trained_digest
from policysearch.search.results import Results
from policysearch.search.samplers import OWN, sampler_named
from policysearch.search.scoring import read_results, scored
from policysearch.search.space import make_space
from policysearch.search.spec import StudySpec
from policysearch.search.trials import FailedTrial, Trial, policy_name
from policysearch.search.view import History, Seen, fits, gap_of, sampler_view

MOST_DUPLICATES = 64
"""So many known policies proposed in a row mean that the space has no others."""

PATIENCE = 3
"""After so many in a row, policies are drawn at random until there is a new one."""


class Progress(Protocol):
    """Told after every training run."""

    def __call__(self, trained: float, results: Callable[[], Results], /) -> None:
        """`trained`: trials done, with fractions; `results()` is what they show, worked out."""
        ...


class Session:
    """One run of a study, from where its journal stands to the number of trials wanted."""

    def __init__(self, spec: StudySpec, objective: Objective, records: Records) -> None:
        self.spec, self.objective, self.records = spec, objective, records
        space = make_space(spec.space, objective.model, spec.rules, spec.study.target)
        self.space = spread_space(space, spec.parallel)
        self.float32 = objective.float32
        self.ladder = self.space.ladder(spec.study.baseline)
        self.prices = Prices(objective, records, spec)
        self.history = History(spec.objectives.names)

    def run(
        self, executor: Executor, progress: Progress | None, retry_failed: bool = False
    ) -> None:
        """Go on until the trials of the study file are done, or the space has no new policy."""
        self._train(executor, self._outstanding(retry_failed), progress)
        self.prices.record(self.records.trials)
        for asked in self.records.searched:
            self.history.append(self._seen(asked, self._scored(asked)))
        while batch := self._next_batch():
            self._train(executor, self._missing(batch), progress)
            for asked in batch:
                self._record(asked)
        self.prices.record(())  # Of the references, once there are trials.
        if progress is not None:
            progress(len(self.records.searched), self.results)

    def tried(
        self, policy: Policy, executor: Executor, progress: Progress | None
    ) -> tuple[Asked, bool]:
        """Train what `policy` lacks and record it by hand; return it, and whether it is new.

        The search goes on as if it had not been: batches and samplers leave it out.
        """
        known = [asked for asked in self.records.trials if asked.digest == policy.digest]
        params = self.space.project(policy)
        asked = Asked(-1, -1, policy.digest, compact(policy), (), params, by_hand=True)
        self._train(executor, self._missing([asked]), progress)
        if not known:
            self._record(asked)
        return known[0] if known else self.records.trials[-1], not known

    def results(self) -> Results:
        """Return what the study has found so far."""
        return read_results(self.records, self.spec, self.prices, self.prices.references)

    def _outstanding(self, retry_failed: bool) -> dict[RunKey, Policy]:
        """Return the runs that recorded trials lack: a seed was added, or a run is tried again."""
        if retry_failed:
            runs = self.records.runs
            failed = [key for key, outcome in runs.items() if isinstance(outcome, Failure)]
            self.records.runs = {key: runs[key] for key in runs.keys() - set(failed)}
        return self._missing(self.records.trials)

    def _missing(self, trials: Sequence[Asked]) -> dict[RunKey, Policy]:
        """Return the runs that `trials`, and float32 beside them, still need."""
        runs, seeds = self.records.runs, self.spec.study.seeds
        wanted = [(asked, RunKey(asked.trained, seed)) for asked in trials for seed in seeds]
        missing = {
            key: from_json(asked.text, "stored policy") for asked, key in wanted if key not in runs
        }
        if trials:
            beside = [RunKey(self.float32.digest, s, j) for j in (0.0, JITTER) for s in seeds]
            missing |= {key: self.float32 for key in beside if key not in runs}
        return missing

    def _next_batch(self) -> list[Asked]:
        """Return the policies to train next, those of an interrupted batch first.

        A batch is asked for from the batches before it alone. So one that was interrupted is
        asked for again as it was, and what is left of it is returned.
        """
        trials, settings = self.records.searched, self.spec.study
        room = settings.trials - len(trials)
        if settings.trials >= len(self.ladder):
            # A preset that is still untried was added to the study file after its trials were done.
            room = max(room, len(self.ladder.keys() - {asked.digest for asked in trials}))
        if room <= 0:
            return []
        last = trials[-1].batch if trials else -1
        told = [asked.digest for asked in trials if asked.batch == last]
        batch: list[Asked] = []
        if 0 < len(told) < settings.workers:
            again = self._ask_batch(len(trials) - len(told), last)
            if [asked.digest for asked in again[: len(told)]] == told:
                batch = again[len(told) :]
        batch = batch or self._ask_batch(len(trials), last + 1)
        return batch[:room]

    def _ask_batch(self, count: int, batch: int) -> list[Asked]:
        """Return the new policies of `batch`, proposed from the first `count` trials.

        First what is left of the ladder, then what the sampler proposes. The sampler is made anew
        for every batch, from the study's seed and the batch.
        """
        settings = self.spec.study
        known = {asked.digest for asked in self.records.searched[:count]}
        presets = [digest for digest in self.ladder if digest not in known]
        shown, names = self.history.shown(count), self.spec.objectives.names
        view = sampler_view(shown, self.space, names, settings.sampler)
        seeds = np.random.SeedSequence([settings.seed, batch]).generate_state(2)
        own = settings.sampler == OWN
        chosen = self._own if own else sampler_named(settings.sampler, int(seeds[0]))
        at_random = sampler_named("random", int(seeds[1]))
        found: list[Asked] = []
        streak = 0
        while len(found) < settings.workers and streak < MOST_DUPLICATES:
            view.sampler = at_random if streak >= PATIENCE else chosen
            policy, known_as = self.ladder[presets.pop(0)] if presets else (None, ())
            if policy is not None:
                view.enqueue_trial(self.space.project(policy))
            trial = view.ask()
            params = self.space.suggest(trial)
            policy = policy or self.space.policy(params)
            if policy.digest in known:
                view.tell(trial, state=TrialState.FAIL)
                streak += 1
                continue
            known.add(policy.digest)
            found.append(Asked(-1, batch, policy.digest, compact(policy), known_as, params))
            streak = 0
        return found

    @cached_property
    def _own(self) -> GainSampler:
        """The package's own sampler; it keeps the prices of the space."""
        return gain_sampler(self.spec, self.objective, gap_of)

    def _train(
        self, executor: Executor, runs: Mapping[RunKey, Policy], progress: Progress | None
    ) -> None:
        """Train `runs` and record each as soon as it ends."""
        told, seeds, trained = len(self.records.searched), len(self.spec.study.seeds), 0
        if progress is not None:
            progress(told, self.results)
        for key, outcome in self.trained(executor, runs):
            self.records.add_run(key, outcome)
            trained += not key.jitter
            if progress is not None:
                progress(told + trained / seeds, self.results)

    def trained(
        self, executor: Executor, runs: Mapping[RunKey, Policy]
    ) -> Iterator[tuple[RunKey, Outcome]]:
        """Train `runs` and yield each with how it ended, in the order they end."""
        keys = list(runs)
        jobs = [Job(runs[key], key.seed, key.jitter, key.steps) for key in keys]
        for index, outcome in executor.run(jobs):
            yield keys[index], outcome

    def confirming(self, trials: Sequence[Trial], horizon: Horizon) -> dict[RunKey, Policy]:
        """Return the runs that confirm `trials` over `horizon` and are still to be trained."""
        policies = [self.float32, *(trial.policy for trial in trials)]
        return {
            key: policy
            for policy in policies
            for seed in horizon.seeds
            if (key := RunKey(trained_digest(policy), seed, 0.0, horizon.steps))
            not in self.records.runs
        }

    def _record(self, asked: Asked) -> None:
        """Record a policy whose runs have ended, with what it is worth."""
        result, seeds = self._scored(asked), self.spec.study.seeds
        values = None
        readable: dict[str, object] = {"name": policy_name(asked.text)}
        if isinstance(result, Trial):
            axes = {
                "loss_gap": result.loss_gap,
                "speedup": result.cost.speedup,
                "memory_ratio": result.cost.memory_ratio,
            }
            values = [axes[name] for name in self.spec.objectives.names]
            readable |= {"validation_accuracy": result.validation_accuracy}
            readable |= {"divergence": result.divergence} if result.diverged else {}
        elif result is not None:
            readable |= {"failure": result.reason}
        if asked.presets or asked.by_hand:
            made = self.space.policy(asked.params).digest
            readable |= {"params_are": "exact" if made == asked.digest else "the nearest"}
        self.records.add_trial(
            asked,
            self.space.distributions(),
            {seed: self.records.runs[RunKey(asked.trained, seed)] for seed in seeds},
            self.prices.key,
            self.prices(asked),
            values,
            readable,
        )
        if not asked.by_hand:
            self.history.append(self._seen(asked, result))

    def _scored(self, asked: Asked) -> Trial | FailedTrial | None:
        base, seeds = self.float32.digest, self.spec.study.seeds
        return scored(asked, self.records.runs, base, seeds, self.prices)

    def _seen(self, asked: Asked, result: Trial | FailedTrial | None) -> Seen:
        """Return the policy as the sampler sees it; what failed has the worst gap."""
        gap = result.loss_gap if isinstance(result, Trial) else DIVERGED_GAP
        params = asked.params
        if not fits(params, self.space.choices()):
            params = self.space.project(from_json(asked.text, "stored policy"))
        cost = self.prices(asked)
        speedup, memory_ratio = (cost.speedup, cost.memory_ratio) if cost else (0.0, 2.0)
        return Seen(params, gap, speedup, memory_ratio)
