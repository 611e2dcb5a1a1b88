"""The results as an Optuna study of their own: values and constraints as the front counts them.

Finished trials of Optuna cannot be changed, and a longer run may show later that a policy fails, or
a new seed that its gap was luck. So beside the journal lies a second one, written anew after every
run, whose best trials are the front.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from policysearch.files import write_whole
from policysearch.objective.score import DIVERGED_GAP
from policysearch.search.hypervolume import dominates, thinned
from policysearch.search.objectives import DIRECTIONS
from policysearch.space.decided.base import Params
from policysearch.study.journal.storage import quiet
from policysearch.study.journal.trials import Trial
from policysearch.study.optuna_samplers import distributions
from policysearch.study.optuna_view import params_of
from policysearch.study.results.results import Results
from policysearch.study.session import Session
from policysearch.values import InputError

Decided = tuple[Mapping[str, Params], Mapping[str, BaseDistribution]]
"""The parameters of policies by digest, and how Optuna describes them."""


def derived_place(storage: Path) -> Path:
    """Return where the derived study of the journal at `storage` is."""
    return storage.with_name(f"{storage.stem}.front{storage.suffix}")


def write_derived(session: Session, results: Results, storage: Path) -> None:
    """Write the derived study of `results` beside the journal at `storage`, whole or not at all.

    A trial has its number in the journal. Raises InputError where it cannot be written.
    """
    decided = {each.digest: params_of(each, session.space) for each in session.records.trials}
    spec, trials = results.spec, _trials(results, (decided, distributions(session.space)))
    with tempfile.TemporaryDirectory() as folder, quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        place = Path(folder) / "study.journal"
        try:
            study = optuna.create_study(
                study_name=spec.study.name,
                directions=[DIRECTIONS[name] for name in spec.objectives.names],
                storage=JournalStorage(JournalFileBackend(str(place))),
            )
            study.set_metric_names(list(spec.objectives.names))
            study.add_trials(trials)
            content = place.read_bytes()
        except OSError as error:
            where = f"{derived_place(storage)}: {error.strerror} in {folder}"
            raise InputError(f"{where}; expected room for temporary files") from None
        write_whole({derived_place(storage): content})


def _trials(results: Results, params: Decided) -> list[FrozenTrial]:
    """Return the trials by their numbers; what failed, or has no number left, as a failed one."""
    members = kept_front(results)
    found = {each.number: _trial(results, each, members, params) for each in results.trials}
    reasons = {each.number: each.reason for each in results.failed}
    last = max([*found, *reasons], default=-1)
    return [
        found.get(number)
        or optuna.trial.create_trial(
            state=TrialState.FAIL, user_attrs={"failure": reasons.get(number, "tried again")}
        )
        for number in range(last + 1)
    ]


def kept_front(results: Results) -> list[Trial]:
    """Return the front of what does not fail at the longer horizon: the front, where none does."""
    if results.cannot_rank:
        return []
    sound = [trial for trial in results.trials if not (trial.diverged or results.fault(trial))]
    points = [results.point(trial) for trial in sound]
    return [sound[i] for i in thinned(points, results.spec.objectives.resolutions)]


def _trial(
    results: Results, trial: Trial, members: Sequence[Trial], params: Decided
) -> FrozenTrial:
    decided, described = params
    known: dict[str, Any] = {
        "name": trial.label,
        "digest": trial.digest,
        "measured_loss_gap": min(trial.loss_gap, DIVERGED_GAP),
        "validation_accuracy": trial.validation_accuracy,
        "verdict": trial.divergence if trial.diverged else results.outlook(trial),
    }
    return optuna.trial.create_trial(
        state=TrialState.COMPLETE,
        params=dict(decided[trial.digest]),
        distributions=dict(described),
        values=_values(results, trial),
        user_attrs={key: value for key, value in known.items() if value is not None},
        constraints=_constraints(results, trial, members),
    )


def _values(results: Results, trial: Trial) -> list[float]:
    """Return the objectives as the front counts them, each in its own direction."""
    pairs = zip(results.spec.objectives.names, results.point(trial), strict=True)
    return [value if DIRECTIONS[name] == "minimize" else -value for name, value in pairs]


def _constraints(results: Results, trial: Trial, members: Sequence[Trial]) -> dict[str, float]:
    """Return why a trial is none of the best though nothing dominates it: above 0 where so.

    `as_good`: a member of the front is as good by what the model can tell.
    """
    here = results.point(trial)
    beaten = any(dominates(results.point(member), here) for member in members)
    outside = not any(member.number == trial.number for member in members)
    said = {
        "diverged": trial.diverged,
        "fails_later": bool(results.fault(trial)),
        "cannot_rank": bool(results.cannot_rank),
        "as_good": outside and not beaten,
    }
    return {name: float(value) for name, value in said.items()}
