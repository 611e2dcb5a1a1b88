"""An open study: its policies trained, and recorded with what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from policysearch.objective.objective import JITTER, Objective
from policysearch.objective.score import DIVERGED_GAP, Failure, Outcome
from policysearch.policy.policy import Policy, from_json
from policysearch.space.decided.base import Params
from policysearch.study.journal.records import Asked, Records, RunKey, compact, trained_digest
from policysearch.study.journal.trials import FailedTrial, Trial, policy_name
from policysearch.study.optuna_samplers import distributions
from policysearch.study.optuna_view import Seen, as_seen, fits
from policysearch.study.prices import Prices
from policysearch.study.results.confirmation import Horizon
from policysearch.study.results.results import Results
from policysearch.study.scoring import read_results, scored
from policysearch.study.specification import StudySpec, space_of
from policysearch.study.workers.executors import Executor, Job


class Progress(Protocol):
    """Told after every training run."""

    def __call__(self, trained: float, results: Callable[[], Results], /) -> None:
        """`trained`: trials done, with fractions; `results()` is what they show, worked out."""
        ...


class Session:
    """A study that is open: the runs that its policies still need, and the record of those made.

    `folder` is for what looks leave, for whole runs to go on from; None leaves nothing.
    """

    def __init__(
        self,
        spec: StudySpec,
        objective: Objective,
        records: Records,
        folder: Path | None = None,
    ) -> None:
        self.spec, self.objective, self.records = spec, objective, records
        self.folder = folder
        self.space = space_of(spec, objective.model)
        self.float32 = objective.float32
        self.prices = Prices(objective, records, spec)

    def tried(
        self, policy: Policy, executor: Executor, progress: Progress | None
    ) -> tuple[Asked, bool]:
        """Train what `policy` lacks and record it by hand; return it, and whether it is new.

        The search goes on as if it had not been: batches and samplers leave it out.
        """
        known = [asked for asked in self.records.trials if asked.digest == policy.digest]
        params = self.space.project(policy)
        asked = Asked(-1, policy.digest, compact(policy), (), params, by_hand=True)
        told, seeds = len(self.records.searched), len(self.spec.study.seeds)
        runs = self.missing([asked], self.spec.study.seeds)
        for done, (key, outcome) in enumerate(self.trained(executor, runs), 1):
            self.records.add_run(key, outcome)
            if progress is not None:
                progress(told + min(1.0, done / seeds), self.results)
        if not known:
            self.record(asked)
        return known[0] if known else self.records.trials[-1], not known

    def results(self) -> Results:
        """Return what the study has found so far."""
        return read_results(self.records, self.spec, self.prices, self.prices.references)

    def forget_failed(self) -> None:
        """Let the runs that failed be missing: they are tried again."""
        runs = self.records.runs
        failed = {key for key, outcome in runs.items() if isinstance(outcome, Failure)}
        self.records.runs = {key: runs[key] for key in runs if key not in failed}

    def missing(
        self, trials: Sequence[Asked], seeds: Sequence[int] | None = None
    ) -> dict[RunKey, Policy]:
        """Return the runs that `trials`, and float32 beside them, still need.

        With each of `seeds`; None stands for those that the search trains with.
        """
        runs, seeds = self.records.runs, seeds or self.spec.study.searched
        wanted = [(asked, RunKey(asked.trained, seed)) for asked in trials for seed in seeds]
        missing = {
            key: from_json(asked.text, "stored policy") for asked, key in wanted if key not in runs
        }
        return missing | (self.missing_float32() if trials else {})

    def missing_float32(self) -> dict[RunKey, Policy]:
        """Return the runs of float32, with and without jitter, that are still to be trained."""
        runs, seeds = self.records.runs, self.spec.study.seeds
        beside = [RunKey(self.float32.digest, s, j) for j in (0.0, JITTER) for s in seeds]
        return {key: self.float32 for key in beside if key not in runs}

    def ended(self, asked: Asked) -> bool:
        """Whether the runs that the policy is scored by have ended, float32's among them."""
        study, base = self.spec.study, self.float32.digest
        keys = [RunKey(asked.trained, seed) for seed in study.searched]
        keys += [RunKey(base, seed) for seed in study.seeds]
        return all(key in self.records.runs for key in keys)

    def settling(self) -> dict[RunKey, Policy]:
        """Return the runs that members of the front lack: of the seeds it was not searched with.

        First those of members that were recorded, then of what the front is with all of them: so a
        study that was stopped trains the same.
        """
        trials, seeds = self.records.trials, self.spec.study.seeds
        known = {asked.digest: asked for asked in trials}
        members = [known[digest] for digest in self.records.finalists if digest in known]
        runs = self.missing(members, seeds) if members else {}
        if not runs:
            front = [known[trial.digest] for trial in self.results().front]
            members = [asked for asked in front if self.missing([asked], seeds)]
            runs = self.missing(members, seeds) if members else {}
            if members:
                self.records.add_finalists([asked.digest for asked in members])
        return runs

    def trained(
        self, executor: Executor, runs: Mapping[RunKey, Policy]
    ) -> Iterator[tuple[RunKey, Outcome]]:
        """Train `runs` and yield each with how it ended, in the order they end."""
        keys = list(runs)
        jobs = [self.job(key, runs[key]) for key in keys]
        for index, outcome in executor.run(jobs):
            yield keys[index], outcome

    def job(self, key: RunKey, policy: Policy) -> Job:
        """Return a run as executors take it; a look is kept, for the whole run to go on from."""
        whole = RunKey(key.digest, key.seed)
        looked = key.until or any(
            each.trained == key.digest for each in self.records.looks.values()
        )
        place = None
        if self.folder is not None and looked and replace(key, until=None) == whole:
            place = self.folder / f"{key.digest}-{key.seed}.npz"
        return Job(policy, key.seed, key.jitter, key.steps, key.until, place, key.width)

    def confirming(
        self, trials: Sequence[Trial], horizon: Horizon, retry_failed: bool = False
    ) -> dict[RunKey, Policy]:
        """Return the runs that confirm `trials` over `horizon` and are still to be trained.

        With `retry_failed` also those that failed.
        """
        runs = self.records.runs
        known = {k for k, run in runs.items() if not (retry_failed and isinstance(run, Failure))}
        policies = [self.float32, *(trial.policy for trial in trials)]
        return {
            key: policy
            for policy in policies
            for seed in horizon.seeds
            if (key := RunKey(trained_digest(policy), seed, 0.0, horizon.steps)) not in known
        }

    def record(self, asked: Asked) -> None:
        """Record a policy whose runs have ended, with what it is worth."""
        result, runs = self._scored(asked), self.records.runs
        values: dict[str, float] | None = None
        readable: dict[str, object] = {"name": policy_name(asked.text)}
        if isinstance(result, Trial):
            values = {
                "loss_gap": result.loss_gap,
                "speedup": result.cost.speedup,
                "memory_ratio": result.cost.memory_ratio,
            }
            readable |= {"validation_accuracy": result.validation_accuracy}
            readable |= {"divergence": result.divergence} if result.diverged else {}
        elif result is not None:
            readable |= {"failure": result.reason}
        if asked.presets or asked.by_hand:
            made = self.space.policy(asked.params).digest
            readable |= {"params_are": "exact" if made == asked.digest else "the nearest"}
        self.records.add_trial(
            asked,
            distributions(self.space),
            {
                seed: runs[key]
                for seed in self.spec.study.seeds
                if (key := RunKey(asked.trained, seed)) in runs
            },
            self.prices.key,
            self.prices(asked),
            values,
            readable,
        )

    def _scored(
        self, asked: Asked, seeds: Sequence[int] | None = None
    ) -> Trial | FailedTrial | None:
        """Return what the runs that the search sees amount to, whatever others there are."""
        base, seeds = self.float32.digest, seeds or self.spec.study.searched
        return scored(asked, self.records.runs, base, seeds, self.prices)

    def seen(self, asked: Asked, seeds: Sequence[int] | None = None) -> Seen:
        """Return the policy as the sampler sees it, or as it is with `seeds`.

        What failed has the worst gap.
        """
        result = self._scored(asked, seeds)
        gap = result.loss_gap if isinstance(result, Trial) else DIVERGED_GAP
        return as_seen(self.params(asked), gap, self.prices(asked))

    def params(self, asked: Asked) -> Params:
        """Return the decisions of the space that are the policy, or the nearest ones."""
        if fits(asked.params, self.space.choices()):
            return asked.params
        return self.space.project(from_json(asked.text, "stored policy"))
