"""Studies: run, confirmed at a longer horizon, and the sampler of one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from policysearch.objective.objective import Objective
from policysearch.study.coordinator import search
from policysearch.study.derived import write_derived
from policysearch.study.gain_sampler import GainSampler, sampler_of
from policysearch.study.kept import keep_graph
from policysearch.study.opening import opened
from policysearch.study.results.picks import candidates, within_budget
from policysearch.study.results.results import Results
from policysearch.study.runs import horizon_of
from policysearch.study.session import Progress, Session
from policysearch.study.specification import StudySpec, objective_of, space_of
from policysearch.study.workers.executors import Make, make_executor


def run_study(
    spec: StudySpec,
    storage: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    accept_changes: bool = False,
    retry_failed: bool = False,
    executor: Make | None = None,
    clock: Callable[[], float] = time.monotonic,
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
    jobs, objective = spec.study.workers * len(spec.study.seeds), objective_of(spec)
    objective.check_price()  # a mistake of the study leaves no journal behind
    with opened(spec, objective, storage, accept_changes) as (records, folder):
        session = Session(spec, objective, records, folder)
        keep_graph(spec, objective, storage)
        make = executor or partial(make_executor, processes=processes, jobs=jobs)
        with make(objective) as running:
            search(session, running, progress, retry_failed, clock)
        results = session.results()
        write_derived(session, results, storage)
        return results


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
    objective = objective_of(spec)
    with opened(spec, objective, storage) as (records, folder):
        session = Session(spec, objective, records, folder)
        keep_graph(spec, objective, storage)
        results = session.results()
        horizon = horizon_of(spec.study.seeds, spec.task.steps, factor, seeds)
        chosen = candidates(results, every)
        if share is not None:
            chosen = within_budget(results, chosen, horizon, share)
        runs = session.runs.confirming(chosen, horizon, retry_failed) if chosen else {}
        make = executor or partial(make_executor, processes=processes, jobs=max(1, len(runs)))
        with make(objective) as running:
            for count, (key, outcome) in enumerate(session.runs.trained(running, runs), 1):
                records.add_run(key, outcome)
                if progress is not None:
                    progress(count, session.results)
        results = session.results()
        write_derived(session, results, storage)
        return results


def gain_sampler(
    spec: StudySpec, objective: Objective | None = None, gap_of: Callable[[float], float] = float
) -> GainSampler:
    """Return the sampler of the space, prices and ladder of a study file.

    For an Optuna study of one's own, whose trials make the decisions of
    `sampler.space.suggest(trial)` and whose values are the study's objectives in their order, the
    loss gap in nats unless `gap_of` makes nats of it. `objective` prices; None makes it anew.
    """
    objective = objective or objective_of(spec)
    space = space_of(spec, objective.model)
    return sampler_of(
        objective, space, spec.objectives.names, spec.study.baseline, spec.study.seed, gap_of
    )
