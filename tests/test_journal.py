"""The journal of a study: what is refused and left alone, and what is used all the same."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from policysearch.search import storage
from policysearch.search.spec import StudySpec, load_spec
from policysearch.search.study import load_results, run_study
from policysearch.values import InputError
from tests.studies import write_study


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def journal(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "tiny.journal"
    run_study(spec, path, processes=1)
    return path


def damaged(content: bytes, how: str) -> bytes:
    lines = content.splitlines(keepends=True)
    return {
        "half": content[: len(content) // 2],
        "half, between lines": b"".join(lines[: len(lines) // 2]),
        "last byte lost": content[:-1],
        "a line gone wrong": b"".join([*lines[:5], lines[5][:9] + b"\0\n", *lines[6:]]),
        "head lost": b"".join(lines[1:]),
        "foreign": b"# notes\n" + content[8:],
    }[how]


HOW = ("half", "half, between lines", "last byte lost", "a line gone wrong", "head lost", "foreign")


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_journal_is_refused_and_left_alone(
    journal: Path, spec: StudySpec, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "bad.journal"
    path.write_bytes(damaged(journal.read_bytes(), how))
    before = path.read_bytes()
    for act in (run_study, load_results):
        with pytest.raises(InputError, match=r"storage .*bad\.journal: .*expected") as caught:
            act(spec, path)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_record_torn_by_a_kill_is_dropped(journal: Path, spec: StudySpec, tmp_path: Path) -> None:
    path = tmp_path / "torn.journal"
    path.write_bytes(journal.read_bytes() + b'{"op_code":4,"worker')
    assert load_results(spec, path) == load_results(spec, journal)
    assert run_study(spec, path, processes=1) == load_results(spec, journal)
    assert path.read_bytes() == journal.read_bytes()


def test_two_runs_at_once_are_refused(journal: Path, spec: StudySpec) -> None:
    with (
        storage.exclusive(journal),
        pytest.raises(InputError, match="in use by another run"),
    ):
        run_study(spec, journal)


def test_an_unfinished_study_shows_what_it_has(spec: StudySpec, tmp_path: Path) -> None:
    path = tmp_path / "early.journal"
    with storage.exclusive(path):
        storage.create_study(path, "tiny", ["minimize", "maximize", "minimize"])
    with pytest.raises(InputError, match="no results yet"):
        load_results(spec, path)


def test_optuna_itself_reads_the_journal(journal: Path) -> None:
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study = optuna.load_study(study_name="tiny", storage=optuna.storages.JournalStorage(backend))
    assert len(study.trials) >= 6
