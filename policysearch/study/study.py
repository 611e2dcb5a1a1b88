"""Studies: run, confirmed at a longer horizon, and read back."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from policysearch.data.datasets import check_batch
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.space.space import check_accumulators
from policysearch.space.target import named_as_run
from policysearch.study.coordinator import search
from policysearch.study.journal.identity import check_identity, check_task, differences, identity_of
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import (
    OpenJournal,
    check_name,
    exclusive,
    open_for_writing,
    quiet,
    read_checked,
)
from policysearch.study.optuna_samplers import OWN, sampler_named
from policysearch.study.prices import Prices
from policysearch.study.results.confirmation import candidates, horizon_of, within_budget
from policysearch.study.results.results import Results
from policysearch.study.scoring import read_results
from policysearch.study.session import Progress, Session
from policysearch.study.specification import DIRECTIONS, StudySpec, objective_of, space_of
from policysearch.study.stopping import Clock
from policysearch.study.workers.executors import Make, make_executor
from policysearch.values import InputError


def run_study(
    spec: StudySpec,
    storage: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    accept_changes: bool = False,
    retry_failed: bool = False,
    executor: Make | None = None,
    clock: Clock = time.monotonic,
) -> Results:
    """Run the study, or go on with it, until there is a reason to stop; return what it has found.

    `storage` is the journal file, made if missing. `processes` None takes one per core, 0 trains in
    this process; the results do not depend on it. `executor` runs the trainings instead, and may
    have other results come first. Every run that ended is used again, whatever else of the study
    file changed. Raises InputError where the task, the data, the code or the libraries differ from
    what made the runs in `storage` (code and libraries pass with `accept_changes`, which is
    recorded), and for a file that is damaged or in use. Runs recorded as failed are started again
    only with `retry_failed`.
    """
    jobs = spec.study.workers * len(spec.study.seeds)
    with _session(spec, objective_of(spec), storage, accept_changes) as session:
        made = executor or partial(make_executor, processes=processes, jobs=jobs)
        with made(session.objective) as running:
            search(session, running, progress, retry_failed, clock)
        return session.results()


def confirm_study(
    spec: StudySpec,
    storage: Path,
    *,
    factor: float = 10.0,
    seeds: int = 1,
    share: float | None = None,
    every: bool = False,
    retry_failed: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
    executor: Make | None = None,
) -> Results:
    """Train the front and its neighbours longer, and return the results with what came of it.

    Over `factor` times the steps of the task and on `seeds` seeds that the search did not use.
    `share` bounds the cost as a share of the study's own training steps; None trains all of them,
    and with `every` each policy of the study that did not diverge. Longer runs that were recorded
    as failed are started again only with `retry_failed`.
    Raises InputError as `run_study`.
    """
    with _session(spec, objective_of(spec), storage) as session:
        results = session.results()
        horizon = horizon_of(spec.study.seeds, spec.task.steps, factor, seeds)
        chosen = candidates(results, every)
        if share is not None:
            chosen = within_budget(results, chosen, horizon, share)
        runs = session.confirming(chosen, horizon, retry_failed) if chosen else {}
        made = executor or partial(make_executor, processes=processes, jobs=max(1, len(runs)))
        with made(session.objective) as running:
            for done, (key, outcome) in enumerate(session.trained(running, runs), 1):
                session.records.add_run(key, outcome)
                if progress is not None:
                    progress(done, session.results)
        return session.results()


def try_policy(
    spec: StudySpec,
    storage: Path,
    policy: Policy,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> tuple[Results, int, bool]:
    """Train `policy` with the seeds of the study and record it as a trial tried by hand.

    Runs that are there are used again, and a policy that is a trial already stays that trial. What
    the search does next does not depend on it. Returns the results, the trial's number, and
    whether it is new. Raises InputError as `run_study`, and where the policy does not fit the task.
    """
    objective = objective_of(spec)
    policy = spec.parallel.spread(named_as_run(policy, objective.model, spec.study.target))
    check_accumulators(policy)
    objective.price(policy)  # Says what is wrong with a policy before a file is made.
    with _session(spec, objective, storage) as session:
        with make_executor(session.objective, processes, len(spec.study.seeds)) as executor:
            asked, new = session.tried(policy, executor, progress)
        return session.results(), asked.number, new


@contextlib.contextmanager
def _session(
    spec: StudySpec, objective: Objective, storage: Path, accept_changes: bool = False
) -> Iterator[Session]:
    """Hold the journal at `storage` and yield a session on it."""
    if spec.study.sampler != OWN:
        sampler_named(spec.study.sampler, spec.study.seed)  # Says what is missing.
    identity = identity_of(
        spec.task,
        objective.model.fingerprint,
        objective.dataset.fingerprint,
        objective.float32.digest,
    )
    space_of(spec, objective.model)  # Says what the space of this model cannot be.
    check_batch(objective.dataset, spec.task.batch_size)
    with exclusive(storage), quiet():
        journal = _opened(spec, storage)
        records = Records(journal.reading.lines, journal)
        # Of runs whose record of it was lost to damage, only the task is taken for granted.
        lost = {**identity, "code": {}, "libraries": {}}
        last = [lost if records.runs else identity, *records.identities][-1]
        check_identity(last, identity, str(storage), accept_changes)
        if not records.identities:
            records.add_identity(last)
        if differences(records.identities[-1], identity):
            records.add_identity(identity)
        code = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        yield Session(spec, objective, records, storage.with_name(f"{storage.name}.{code}"))


def _opened(spec: StudySpec, storage: Path) -> OpenJournal:
    names = list(spec.objectives.names)
    return open_for_writing(storage, spec.study.name, [DIRECTIONS[n] for n in names], names)


def load_results(spec: StudySpec, storage: Path) -> Results:
    """Return what the study in `storage` has found so far, as `spec` scores it.

    Nothing is changed. Raises InputError where there are no results, or those of another task.
    """
    if not storage.exists():
        raise InputError(
            f"storage {storage}: not there; expected the results of a run "
            f"(policysearch run makes them)"
        )
    reading = read_checked(storage)
    check_name(reading, spec.study.name, storage)
    records = Records(reading.lines)
    if not records.identities:
        fault = "what made its results was lost" if records.runs else "no results yet"
        valid = "`run --accept-changes`" if records.runs else "those of a run"
        raise InputError(f"storage {storage}: {fault}; expected {valid}")
    check_task(records.identities[-1], spec.task.to_plain(), str(storage))
    prices = Prices(objective_of(spec), records, spec)
    return read_results(records, spec, prices, prices.references)
