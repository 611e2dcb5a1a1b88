"""The derived Optuna study: its best trials are the front, before a confirmation and after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.study.derived import derived_place, kept_front
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.study.study import confirm_study, run_study
from tests.studies import measured, replaced_training, write_study
from tests.test_confirm import CHANGES, MANY, decaying
from tests.test_failures import is_float32

STUDIES = sorted((Path(__file__).parents[1] / "studies").glob("*.toml"))


def shown(storage: Path, name: str) -> optuna.Study:
    """Return the derived study as a user of Optuna opens it."""
    backend = JournalFileBackend(str(derived_place(storage)))
    return optuna.load_study(study_name=name, storage=JournalStorage(backend))


def agrees(results: Results, storage: Path) -> optuna.Study:
    study = shown(storage, results.spec.study.name)
    front = {trial.number: results.point(trial) for trial in kept_front(results)}
    assert {trial.number for trial in study.best_trials} == front.keys()
    signs = np.array([1.0 if d.name == "MINIMIZE" else -1.0 for d in study.directions])
    for trial in study.best_trials:
        np.testing.assert_array_equal(signs * trial.values, front[trial.number])
    names = {trial.number: trial.digest for trial in results.trials}
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        assert trial.user_attrs["digest"] == names.pop(trial.number)
    assert not names and study.metric_names == list(results.spec.objectives.names)
    return study


def test_best_trials_are_the_front_before_a_confirmation_and_after(tmp_path: Path) -> None:
    spec, storage = load_spec(write_study(tmp_path, *CHANGES)), tmp_path / "tiny.journal"
    with mock.patch.object(Objective, "measure", decaying):
        results = run_study(spec, storage, processes=0)
        assert kept_front(results) and {t.number for t in results.front} == {
            t.number for t in kept_front(results)
        }
        agrees(results, storage)
        results = confirm_study(spec, storage, processes=0)
    study = agrees(results, storage)
    failing = {trial.number for trial in results.front if results.fault(trial)}
    assert failing  # or nothing was shown
    infeasible = {t.number for t in study.trials if any(v > 0.0 for v in t.constraints.values())}
    assert failing <= infeasible
    assert all(study.trials[number].constraints["fails_later"] == 1.0 for number in failing)
    assert all(study.trials[n].user_attrs["verdict"].startswith("fails later") for n in failing)


def test_many_that_are_as_good_are_not_best(tmp_path: Path) -> None:
    spec, storage = load_spec(write_study(tmp_path, *MANY)), tmp_path / "j"
    with replaced_training():
        results = run_study(spec, storage, processes=0)
    study = agrees(results, storage)
    assert derived_place(storage).name == "j.front"
    plain = [trial for trial in study.trials if trial.constraints.get("as_good")]
    assert plain and len(results.front) > 1  # which Optuna alone would call best


def test_what_failed_or_diverged_has_its_number_and_is_not_best(tmp_path: Path) -> None:
    def some(policy: Policy, seed: int) -> Measurement:
        run = measured(policy, seed)
        if is_float32(policy):
            return run
        if policy.digest[0] in "0123":
            raise ArithmeticError("out of range")
        lost = replace(run, tail_loss=None, diverged_at=3)
        return lost if policy.digest[0] in "4567" else run

    spec, storage = load_spec(write_study(tmp_path, *MANY)), tmp_path / "t.journal"
    with replaced_training(some):
        results = run_study(spec, storage, processes=0)
    assert results.failed and any(trial.diverged for trial in results.trials)
    study = agrees(results, storage)
    for failed in results.failed:
        assert study.trials[failed.number].state == TrialState.FAIL
        assert study.trials[failed.number].user_attrs["failure"] == failed.reason
    for trial in results.trials:
        assert study.trials[trial.number].constraints["diverged"] == float(trial.diverged)


def test_the_journal_itself_stays_as_it_is_and_a_second_run_writes_the_same(tmp_path: Path) -> None:
    spec, storage = load_spec(write_study(tmp_path)), tmp_path / "tiny.journal"
    with replaced_training():
        run_study(spec, storage, processes=0)
        kept = storage.read_bytes(), shown(storage, "tiny").trials
        run_study(spec, storage, processes=0)
    again = shown(storage, "tiny").trials
    assert storage.read_bytes() == kept[0]
    assert [(t.values, t.params, t.constraints) for t in again] == [
        (t.values, t.params, t.constraints) for t in kept[1]
    ]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_shipped_studies_agree_with_made_up_losses(path: Path, tmp_path: Path) -> None:
    if path.stem == "own-net":
        pytest.importorskip("torch")
    spec, storage = load_spec(path).with_trials(4), tmp_path / "s.journal"
    spec = replace(spec, study=replace(spec.study, sampler="random"))  # prices what it draws alone
    with replaced_training():
        agrees(run_study(spec, storage, processes=0), storage)
