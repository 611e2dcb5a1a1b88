"""A journal that is moved, locked strangely, changed by Optuna's tools, or robbed of its head."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.study.journal import storage
from policysearch.study.journal.storage import read_journal
from policysearch.study.opening import load_results
from policysearch.study.sections import ObjectivesSection
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import measured, replaced_training, write_study


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture
def journal(spec: StudySpec, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.journal"
    with replaced_training():
        run_study(spec, path, processes=0)
    return path


@pytest.mark.parametrize("replaced", [True, False])
def test_a_run_whose_journal_is_moved_writes_nowhere_else(
    spec: StudySpec, tmp_path: Path, replaced: bool
) -> None:
    path, moved, begun = tmp_path / "x.journal", tmp_path / "moved.journal", [0]

    def stand(policy: Policy, seed: int) -> Measurement:
        begun[0] += 1
        if begun[0] == 5:
            os.rename(path, moved)
            if replaced:
                with replaced_training():
                    run_study(spec, path, processes=0)
        return measured(policy, seed)

    said = "another file than the one this run holds" if replaced else "No such file"
    with replaced_training(stand), pytest.raises(InputError, match=rf"x\.journal: {said}"):
        run_study(spec, path, processes=0)
    assert begun[0] == 5
    assert not read_journal(moved.read_bytes()).damage
    with replaced_training() as trained:
        finished = run_study(spec, moved, processes=0)
    if replaced:
        assert load_results(spec, path) == finished
    assert len(trained) >= 4 and len(finished.trials) == 6


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EAGAIN, "in use by another run"),
        (errno.ENOLCK, "No locks available; expected a file to lock"),
        (errno.ENOSYS, ""),
        (errno.EOPNOTSUPP, ""),
    ],
)
def test_a_place_without_locks_is_not_one_in_use(
    number: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    if said:
        with pytest.raises(InputError, match=said), storage.exclusive(tmp_path / "x"):
            pass
        return
    with storage.exclusive(tmp_path / "x"):
        assert (tmp_path / "x").is_file()


@pytest.mark.parametrize("names", [("loss_gap", "speedup"), ("speedup", "loss_gap")])
def test_other_objectives_go_on_with_the_journal(
    names: tuple[str, ...], spec: StudySpec, journal: Path
) -> None:
    objectives = ObjectivesSection(names)  # type: ignore[arg-type]
    other = replace(spec.with_trials(8), objectives=objectives)
    with replaced_training():
        found = run_study(other, journal, processes=0)
    assert len(found.trials) == 8 and len(found.point(found.trials[0])) == 2
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study = optuna.load_study(study_name="tiny", storage=optuna.storages.JournalStorage(backend))
    assert study.metric_names == ["loss_gap", "speedup", "memory_ratio"]
    for trial in found.trials:
        cost = trial.cost
        wanted = [trial.loss_gap, cost.speedup, cost.memory_ratio]
        assert study.trials[trial.number].values == wanted


@pytest.mark.parametrize("record", [{"op_code": 1, "study_id": 0}, {"op_code": 99}])
def test_a_study_that_another_program_broke_is_damaged_and_repaired(
    record: dict[str, int], spec: StudySpec, journal: Path
) -> None:
    before, lines = load_results(spec, journal), journal.read_bytes().splitlines()
    with journal.open("ab") as file:
        file.write(json.dumps({**record, "worker_id": "other"}).encode() + b"\n")
    with pytest.raises(InputError, match=f"line {len(lines) + 1} is damaged"):
        run_study(spec, journal, processes=0)
    storage.repair(journal, "tiny", ["minimize", "maximize", "minimize"])
    with replaced_training() as trained:
        assert run_study(spec, journal, processes=0) == before and not trained


def test_results_whose_maker_was_lost_are_only_added_to_when_told(
    spec: StudySpec, journal: Path
) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b"policysearch:identity" not in line]
    assert len(kept) == len(lines) - 2  # it is recorded twice
    journal.write_bytes(b"".join(kept))
    storage.repair(journal, "tiny", ["minimize", "maximize", "minimize"])
    with pytest.raises(InputError, match="what made its results was lost; expected `run --acc"):
        load_results(spec, journal)
    before = journal.read_bytes()
    with pytest.raises(
        InputError, match=r"code differs: .*numpy .* \(was None\).*run --accept-changes"
    ):
        run_study(spec, journal, processes=0)
    assert journal.read_bytes() == before
    with replaced_training() as trained:
        found = run_study(spec, journal, processes=0, accept_changes=True)
    assert not trained and len(found.trials) == 6
    assert any("was None" in change for change in found.mixed)
    assert load_results(spec, journal) == found
