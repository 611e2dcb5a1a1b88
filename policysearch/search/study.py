"""The search: an Optuna study asked for policies and told what they are worth."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import optuna
from optuna.trial import TrialState

from policysearch.cost.price import PolicyCost
from policysearch.objective import DIVERGED_GAP, JITTER, Objective, gap
from policysearch.policy.policy import Policy, from_json, with_accumulator
from policysearch.policy.presets import ladder
from policysearch.search.executors import Executor, Job, make_executor
from policysearch.search.identity import check_identity, check_study_file, identity_of
from policysearch.search.records import (
    jittered_runs,
    measured_runs,
    read_results,
    recover,
    trained_trials,
)
from policysearch.search.results import Results
from policysearch.search.samplers import sampler_named
from policysearch.search.space import check_accumulators, make_space
from policysearch.search.spec import DIRECTIONS, ObjectiveName, StudySpec
from policysearch.search.storage import create_study, exclusive, open_study, quiet
from policysearch.values import InputError, to_plain

GAP_UNIT = 1e-3
"""The sampler sees asinh(gap / GAP_UNIT): linear to about a thousandth of a nat, then a logarithm.

It rises with the gap, so the front is the same; a model of the gaps then has decades to work on.
"""

MOST_DUPLICATES = 64
"""So many known policies proposed in a row mean that the space has no others."""

PATIENCE = 8
"""After so many in a row, policies are drawn at random until there is a new one."""


class Progress(Protocol):
    """Told after every training run."""

    def __call__(self, trained: float, results: Results | None) -> None:
        """`trained`: trials done, with fractions; `results` whenever trials were told."""
        ...


@dataclass(frozen=True)
class _Pending:
    trial: optuna.Trial
    policy: Policy


class Session:
    """One run of a study, from where its journal stands to the number of trials wanted."""

    def __init__(self, spec: StudySpec, objective: Objective, study: optuna.Study) -> None:
        self.spec, self.objective, self.study = spec, objective, study
        self.space = make_space(spec.space, objective.model)
        self.float32 = objective.float32
        names = dict.fromkeys(("float32", *spec.space.ladder))
        self.ladder = [
            with_accumulator(policy, spec.space.accumulators[0])
            for policy in ladder(objective.model.layer_names, names)
        ]
        for policy in self.ladder:
            check_accumulators(policy)
        self.measured = measured_runs(study, spec.study.seeds)
        self.jittered = jittered_runs(study, spec.study.seeds)
        self.priced: dict[str, PolicyCost] = {}

    def run(self, executor: Executor, progress: Progress | None) -> None:
        """Go on until the trials of the study file are done, or the space has no new policy."""
        recover(self.study)
        settings = self.spec.study
        while (done := len(trained_trials(self.study))) < settings.trials:
            if progress is not None:
                progress(done, read_results(self.study) if done else None)
            size = min(settings.workers - done % settings.workers, settings.trials - done)
            batch, copies = self._ask_batch(size)
            if not batch:
                break
            self._train(executor, batch, done, progress)
            for pending in (*batch, *copies):
                self._tell(pending)
        if progress is not None:
            progress(len(trained_trials(self.study)), read_results(self.study))

    def _ask_batch(self, size: int) -> tuple[list[_Pending], list[_Pending]]:
        """Return up to `size` trials with new policies, and trials that repeat one of those.

        A trial that repeats an earlier one is told its result at once.
        """
        known = {t.user_attrs["digest"] for t in trained_trials(self.study)}
        batch: list[_Pending] = []
        copies: list[_Pending] = []
        streak = 0
        while len(batch) < size and streak < MOST_DUPLICATES:
            pending = self._ask(at_random=streak >= PATIENCE)
            digest = pending.policy.digest
            if digest not in known:
                known.add(digest)
                batch.append(pending)
                streak = 0
                continue
            streak += 1
            pending.trial.set_user_attr("duplicate", True)
            if digest in {other.policy.digest for other in batch}:
                copies.append(pending)
            else:
                self._tell(pending)
        return batch, copies

    def _ask(self, at_random: bool) -> _Pending:
        """Return the next trial: one waiting, else the next of the ladder, else a sampled one.

        The sampler is made anew from the study's seed and the number of trials asked before, so
        an interrupted study goes on as if it had not been.
        """
        trials = self.study.get_trials(deepcopy=False)
        asked = sum(t.state in (TrialState.COMPLETE, TrialState.RUNNING) for t in trials)
        seed = int(np.random.SeedSequence([self.spec.study.seed, asked]).generate_state(1)[0])
        name = "random" if at_random else self.spec.study.sampler
        self.study.sampler = sampler_named(name, seed)
        live = [t for t in trials if t.state != TrialState.FAIL]
        if not any(t.state == TrialState.WAITING for t in live):
            tried = {t.user_attrs.get("preset") for t in live}
            left = [policy for policy in self.ladder if policy.name not in tried]
            if left:
                attrs = _attrs(left[0]) | {"preset": left[0].name}
                self.study.enqueue_trial(self.space.project(left[0]), user_attrs=attrs)
        trial = self.study.ask()
        params = self.space.suggest(trial)
        if "policy" in trial.user_attrs:
            return _Pending(trial, from_json(trial.user_attrs["policy"], "stored policy"))
        policy = self.space.policy(params)
        for key, value in _attrs(policy).items():
            trial.set_user_attr(key, value)
        return _Pending(trial, policy)

    def _train(
        self, executor: Executor, batch: Sequence[_Pending], done: int, progress: Progress | None
    ) -> None:
        """Run what is not measured yet and keep every result as soon as it is there."""
        seeds = self.spec.study.seeds
        todo: list[tuple[_Pending | None, Job]] = []
        for pending in batch:
            jobs = (Job(pending.policy, seed) for seed in seeds)
            todo += [(pending, j) for j in jobs if (j.policy.digest, j.seed) not in self.measured]
        todo += [(None, Job(self.float32, s, JITTER)) for s in seeds if s not in self.jittered]
        finished = len(batch) * len(seeds) - sum(owner is not None for owner, _ in todo)
        for index, measurement in executor.run([job for _, job in todo]):
            owner, job = todo[index]
            plain = to_plain(measurement)
            if owner is None:
                self.study.set_user_attr(f"jittered:{job.seed}", plain)
                self.jittered[job.seed] = measurement
                continue
            owner.trial.set_user_attr(f"measured:{job.seed}", plain)
            self.measured[job.policy.digest, job.seed] = measurement
            finished += 1
            if progress is not None:
                progress(done + finished / len(seeds), None)

    def _tell(self, pending: _Pending) -> None:
        """Tell the sampler; a diverged run has a finite, worst gap and breaks a constraint."""
        trial, digest = pending.trial, pending.policy.digest
        cost = self._price(pending.policy)
        known = trial.user_attrs
        gaps, diverged = [], False
        for seed in self.spec.study.seeds:
            run = self.measured[digest, seed]
            if f"measured:{seed}" not in known:
                trial.set_user_attr(f"measured:{seed}", to_plain(run))
            gaps.append(gap(run, self.measured[self.float32.digest, seed]))
            diverged = diverged or run.diverged
        mean_gap = DIVERGED_GAP if diverged else math.fsum(gaps) / len(gaps)
        axes: dict[ObjectiveName, float] = {
            "loss_gap": math.asinh(max(0.0, mean_gap) / GAP_UNIT),
            "speedup": cost.speedup,
            "memory_ratio": cost.memory_ratio,
        }
        trial.set_user_attr("cost", to_plain(cost))
        trial.set_constraint("diverged", 1.0 if diverged else 0.0)
        self.study.tell(trial, [axes[name] for name in self.spec.objectives.names])

    def _price(self, policy: Policy) -> PolicyCost:
        if policy.digest not in self.priced:
            self.priced[policy.digest] = self.objective.price(policy)
        return self.priced[policy.digest]


def _attrs(policy: Policy) -> dict[str, Any]:
    compact = json.dumps(json.loads(policy.to_json()), separators=(",", ":"))
    return {"policy": compact, "digest": policy.digest}


def run_study(
    spec: StudySpec,
    storage: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Results:
    """Run the study, or go on with it, until its trials are done; return what it has found.

    `storage` is the journal file, made if missing. `processes` None takes one per core; the
    results do not depend on it. Raises InputError where the study file, the data or the code
    differs from what made the results in `storage`, and for a file that is damaged or in use.
    A run that is interrupted or killed leaves a journal that the next one goes on with.
    """
    settings = spec.study
    sampler_named(settings.sampler, settings.seed)
    cost = spec.cost
    objective = Objective(spec.task, cost.device, cost.stack, cost.batch_size, settings.fast)
    identity = identity_of(spec, objective.dataset.fingerprint)
    make_space(spec.space, objective.model)
    directions = [DIRECTIONS[name] for name in spec.objectives.names]
    with exclusive(storage), quiet():
        study = create_study(storage, settings.name, directions)
        if "identity" in study.user_attrs:
            check_identity(study.user_attrs["identity"], identity, str(storage))
        else:
            study.set_user_attr("spec", to_plain(spec))
            study.set_user_attr("identity", identity)
        session = Session(spec, objective, study)
        try:
            with make_executor(objective, processes, settings.workers * len(settings.seeds)) as e:
                session.run(e, progress)
        except KeyboardInterrupt:
            recover(study)
            raise
        return read_results(study)


def load_results(spec: StudySpec, storage: Path) -> Results:
    """Return what the study in `storage` has found so far; nothing is changed.

    Raises InputError where there are no results, or those of a study file that differs.
    """
    if not storage.exists():
        raise InputError(
            f"storage {storage}: not there; expected the results of a run "
            f"(policysearch run makes them)"
        )
    study = open_study(storage, spec.study.name)
    if "identity" not in study.user_attrs:
        raise InputError(f"storage {storage}: no results yet; expected those of a run")
    check_study_file(study.user_attrs["identity"], spec, str(storage))
    return read_results(study)
