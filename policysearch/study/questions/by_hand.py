"""A policy that the user names: trained with the study's seeds, and recorded as a trial."""

from __future__ import annotations

from pathlib import Path

from policysearch.policy.policy import Policy
from policysearch.space.decided.products import check_accumulators
from policysearch.space.target import named_as_run
from policysearch.study.journal.records import Asked, compact
from policysearch.study.kept import keep_graph
from policysearch.study.opening import opened
from policysearch.study.results.results import Results
from policysearch.study.session import Progress, Session
from policysearch.study.specification import StudySpec, objective_of
from policysearch.study.workers.executors import Executor, make_executor


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
    with opened(spec, objective, storage) as (records, folder):
        session = Session(spec, objective, records, folder)
        keep_graph(spec, objective, storage)
        with make_executor(objective, processes, len(spec.study.seeds)) as executor:
            asked, new = _record_trial(session, policy, executor, progress)
        return session.results(), asked.number, new


def _record_trial(
    session: Session, policy: Policy, executor: Executor, progress: Progress | None
) -> tuple[Asked, bool]:
    """Train what `policy` lacks and record it by hand; return it, and whether it is new.

    The search goes on as if it had not been: batches and samplers leave it out.
    """
    known = [asked for asked in session.records.trials if asked.digest == policy.digest]
    params = session.space.project(policy)
    asked = Asked(-1, policy.digest, compact(policy), (), params, by_hand=True)
    before, seeds = len(session.records.searched), session.runs.seeds
    runs = session.runs.missing([asked], seeds)
    for count, (key, outcome) in enumerate(session.runs.trained(executor, runs), 1):
        session.records.add_run(key, outcome)
        if progress is not None:
            progress(before + min(1.0, count / len(seeds)), session.results)
    if not known:
        session.record(asked)
    return known[0] if known else session.records.trials[-1], not known
