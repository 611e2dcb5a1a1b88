"""The switch between C, numpy and the reference: from a study, Python and the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from policysearch import api
from policysearch.cli import main
from policysearch.report.table import EMULATORS, caption
from policysearch.rounding.rounder import EXECUTORS, FASTS, Fast, fast_ways
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.values import InputError
from tests.studies import write_study

SHORT = (("trials = 6", "trials = 2"), ("seeds = [0, 1]", "seeds = [0]"))


def _without_fast(results: Results) -> list[Trial]:
    return [
        replace(trial, scores=tuple(replace(score, fast="") for score in trial.scores))
        for trial in results.trials
    ]


def _ran(results: Results) -> set[str]:
    return {score.fast for trial in results.trials for score in trial.scores}


@pytest.mark.parametrize("processes", [0, 1])
def test_results_are_the_same_and_say_what_ran(tmp_path: Path, processes: int) -> None:
    study = api.load_study(write_study(tmp_path, *SHORT))
    found = {}
    for fast in fast_ways():
        journal = tmp_path / f"{fast}.journal"
        found[fast] = api.run_study(study, journal, fast=fast, processes=processes)
        assert _ran(found[fast]) == {fast}
        assert f"Emulated by {EMULATORS[fast]}." in caption(found[fast])
    assert "Emulated" not in caption(replace(found["off"], trials=()))
    for results in found.values():
        assert _without_fast(results) == _without_fast(found["off"])


def test_a_study_file_names_it_and_another_way_goes_on_with_its_journal(tmp_path: Path) -> None:
    own = write_study(tmp_path, *SHORT, ("workers = 2", 'workers = 2\nfast = "off"'), name="o.toml")
    study, other = api.load_study(own), api.load_study(write_study(tmp_path, *SHORT))
    journal = tmp_path / "tiny.journal"
    assert _ran(api.run_study(study, journal, trials=1, processes=0)) == {"off"}
    assert _ran(api.run_study(other, journal, processes=0)) == {"off", fast_ways()[0]}


@pytest.mark.usefixtures("one_process")
def test_the_command_line_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, journal = write_study(tmp_path, *SHORT), tmp_path / "tiny.journal"
    places = [str(study), "--storage", str(journal)]
    assert main(["run", *places, "--fast", "off", "--processes", "1"]) == 0
    assert _ran(api.load_results(api.load_study(study), journal)) == {"off"}
    assert main(["show", *places]) == 0
    assert "Emulated by the reference." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["run", *places, "--fast", "slow"])


def test_every_way_has_words() -> None:
    assert tuple(EMULATORS) == EXECUTORS


@pytest.mark.parametrize("fast", [fast for fast in FASTS if fast not in fast_ways()])
def test_a_way_that_is_not_there_is_a_mistake(tmp_path: Path, fast: Fast) -> None:
    study = api.load_study(write_study(tmp_path, *SHORT))
    with pytest.raises(InputError, match=r"which is not built; expected one of .*off"):
        api.run_study(study, tmp_path / "tiny.journal", fast=fast)


def test_a_study_with_an_unknown_way_is_a_mistake(tmp_path: Path) -> None:
    path = write_study(tmp_path, ("workers = 2", 'workers = 2\nfast = "slow"'))
    with pytest.raises(InputError, match=r"study\.fast: 'slow'; expected one of c, numpy, off"):
        api.load_study(path)
