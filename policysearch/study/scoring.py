"""From the facts of a study to its results: every policy against float32, under a study file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

from policysearch.cost.price import PolicyCost
from policysearch.objective.score import Failure, Measurement, Outcome, score
from policysearch.study.float32_runs import float32_fault, learned, measured, noise_gap
from policysearch.study.journal.identity import differences
from policysearch.study.journal.records import Asked, Records, RunKey, digest_of_runs
from policysearch.study.journal.trials import FailedTrial, Provenance, Trial, policy_name
from policysearch.study.results.confirmation import confirmations, horizons, unconfirmed
from policysearch.study.results.fidelity import FidelitySummary, Prices, fidelity_summary
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec

T = TypeVar("T")


def read_results(
    records: Records,
    spec: StudySpec,
    prices: Prices,
    references: Sequence[tuple[str, PolicyCost]] = (),
) -> Results:
    """Return what the study has found so far, without policies that have a run outstanding.

    `references` is what speedups are given against, by name.
    """
    if not records.identities:
        return Results(spec, (), None)
    seeds, base = spec.study.seeds, records.identities[-1]["float32"]
    trials, failed = list[Trial](), list[FailedTrial]()
    by_hand = {asked.digest for asked in records.trials if asked.by_hand}
    for asked in _each_once(records.trials):
        trained = [s for s in seeds if RunKey(asked.trained, s) in records.runs]
        known = [s for s in seeds if s in trained or s in spec.study.searched]
        outcome = scored(asked, records.runs, base, known, prices)
        if isinstance(outcome, Trial):
            trials.append(replace(outcome, by_hand=outcome.digest in by_hand))
        elif outcome is not None:
            failed.append(outcome)
    return Results(
        spec,
        tuple(trials),
        noise_gap(records.runs, base, seeds),
        tuple(failed),
        float32_fault(records.runs, base, spec.task, seeds),
        tuple(change for pair in pairwise(records.identities) for change in differences(*pair)),
        _by_digest(trials, partial(confirmations, records.runs, base)),
        tuple(references),
        learned(records.runs, base, seeds, records.constant),
        records.stopped,
        _fidelity(records, spec, base, prices),
        _left(records, prices),
        _by_digest(trials, partial(unconfirmed, records.runs, base)),
        _by_digest(trials, partial(horizons, records.runs, base)),
        provenance=_provenance(records),
    )


def _provenance(records: Records) -> Provenance:
    runs = [run for run in records.runs.values() if isinstance(run, Measurement)]
    # Older journals know numpy and its BLAS alone.
    makers = records.makers or [each.get("libraries", {}) for each in records.identities]
    return Provenance(
        tuple(tuple((str(k), str(v)) for k, v in sorted(each.items())) for each in makers),
        min((start for start, _ in records.times), default=""),
        max((end for _, end in records.times), default=""),
        len(runs),
        sum(run.wall_seconds for run in runs),
    )


def _fidelity(
    records: Records, spec: StudySpec, base: str, prices: Prices
) -> FidelitySummary | None:
    fidelity, names = spec.study.fidelity(spec.task.steps), spec.objectives.names
    return fidelity_summary(records, fidelity, names, base, prices) if fidelity else None


def _left(records: Records, prices: Prices) -> tuple[tuple[str, PolicyCost], ...]:
    """Return name and cost of what of the ladder was not trained."""
    trained = {asked.digest for asked in records.trials}
    priced = [(each, prices(each)) for each in records.weighed if each.digest not in trained]
    return tuple((policy_name(each.text), cost) for each, cost in priced if cost is not None)


def _by_digest(
    trials: Sequence[Trial], verdicts: Callable[[list[str]], Mapping[str, T]]
) -> tuple[tuple[str, T], ...]:
    """Return (digest, what is found) of the trials, by the digests of their runs."""
    trained = {trial.digest: digest_of_runs(trial.text, trial.digest) for trial in trials}
    by_run = verdicts(list(dict.fromkeys(trained.values())))
    return tuple((digest, by_run[run]) for digest, run in trained.items() if run in by_run)


def _each_once(trials: Sequence[Asked]) -> list[Asked]:
    """Return the trials with every policy once: one tried by hand and searched later is the first.

    It keeps that number, so that what was printed of it stays true, and the names of the later one.
    """
    firsts: dict[str, Asked] = {}
    for asked in trials:
        first = firsts.setdefault(asked.digest, asked)
        if first is not asked:
            names, start = first.presets or asked.presets, first.start or asked.start
            firsts[asked.digest] = replace(first, presets=names, start=start)
    return list(firsts.values())


def scored(
    asked: Asked,
    runs: Mapping[RunKey, Outcome],
    base: str,
    seeds: Sequence[int],
    prices: Prices,
) -> Trial | FailedTrial | None:
    """Return what the runs of a policy amount to; None while one of them is outstanding.

    `base` is the digest of float32. Where float32 has no measurement the gap is DIVERGED_GAP.
    """
    trained = asked.trained
    outcomes = [runs.get(RunKey(trained, seed)) for seed in seeds]
    if any(RunKey(digest, seed) not in runs for seed in seeds for digest in (trained, base)):
        return None
    reasons = [o.reason for o in outcomes if isinstance(o, Failure)]
    cost = prices(asked)
    if reasons or cost is None:
        reason = reasons[0] if reasons else "the cost model has no price for it"
        return FailedTrial(asked.number, asked.text, asked.presets, reason)
    ended = [o for o in outcomes if isinstance(o, Measurement)]
    lost = [
        f"{run.divergence} (seed {s})" for run, s in zip(ended, seeds, strict=True) if run.diverged
    ]
    scores = (
        score(run, measured(runs.get(RunKey(base, seed))), cost)
        for run, seed in zip(ended, seeds, strict=True)
    )
    return Trial(
        asked.number,
        asked.digest,
        asked.text,
        asked.presets,
        tuple(scores),
        divergence=lost[0] if lost else "",
        start=asked.start,
        seeds=tuple(seeds),
        expected=asked.expected,
    )
