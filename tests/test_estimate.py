"""How long a study is said to take, and that a long one is asked for."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from policysearch.api import load_results, load_study
from policysearch.cli import main
from policysearch.commands import run as run_command
from policysearch.study.estimate import (
    RELOADED_SECONDS,
    Estimate,
    Timed,
    _share,
    estimate,
    longer_runs,
    said,
)
from policysearch.study.results.picks import candidates
from policysearch.study.specification import load_spec
from policysearch.study.workers.executors import cores
from tests.studies import write_study


def test_seconds_are_of_all_trainings_and_the_longer_runs() -> None:
    spec = load_spec(Path("studies:lenet5-digits"))  # 24 trials, 3 seeds, 160 steps, share 1
    cheap, dear = Timed("cheap", 0.01, 0.5), Timed("dear", 0.03, 0.7)
    found = Estimate(spec, (cheap, dear), 2, 2**30, cheap)
    of_one, of_float32 = (0.5 + 160 * 0.01 + 0.7 + 160 * 0.03) / 2, 0.5 + 160 * 0.01
    trained = 24 * 3 * of_one + 2 * 3 * of_float32
    assert found.seconds == pytest.approx(RELOADED_SECONDS + trained * 2 / 2)
    first, second, *others = found.lines()
    assert f"about {said(found.seconds)} in all on 2 processes of 1 GiB" in first
    assert second == "a step takes 10 ms under cheap, 30 ms under dear"
    assert len(others) == 4 and "task.batch_size = 64" in others[-1]


def test_a_busy_machine_is_said_beside_the_estimate() -> None:
    spec = load_spec(Path("studies:lenet5-digits"))
    for share, load, words in ((0.95, 9.0, ""), (0.5, 4.0, f", load 4 on {cores()} cores")):
        rows = Timed("cheap", 0.02, 0.0), Timed("dear", 0.06, 0.0, share)
        found = Estimate(spec, rows, 2, 2**30, rows[0], load)
        idle = Estimate(spec, (rows[0], Timed("dear", 0.03, 0.0)), 2, 2**30, rows[0])
        busy = f"; the machine is busy (a training had {share:.0%} of a core{words}): about "
        busy += f"{said(idle.seconds)} with nothing beside it"
        assert found.lines()[0].endswith(f" GiB{busy if words else ''}")
    assert "had 50% of a core)" in Estimate(spec, rows, 2, 2**30, rows[0]).lines()[0]


def test_what_other_work_takes_of_a_core_is_seen() -> None:
    """A step that waits half of the time has half of a core, whatever the system says of load."""
    assert _share([(2.0, 1.0), (2.0, 1.0)]) == 0.5
    assert _share([(1.0, 1.0), (2.0, 4.0)]) == 1.0  # several threads


def test_float32_and_the_ladder_are_timed_each_once(tmp_path: Path) -> None:
    found = estimate(load_spec(write_study(tmp_path)), processes=3)
    names = [timed.name for timed in found.timed]
    assert "float32" in names and len(names) == len(set(names)) > 1
    steps = [timed.step_seconds for timed in found.timed]
    assert steps == sorted(steps) and steps[-1] > 0.0
    assert found.processes == 3 and found.process_bytes > 2**20


def test_without_longer_runs_none_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "_search", lambda *_: sys.exit(7))
    """Nor announced where the budget pays for none: 0.5 of 12 trainings are 6 of 20 wanted."""
    for share, option, counted in (
        ("5", "--yes", 5),
        ("5", "--no-confirm", 0),
        ("0.5", "--yes", 0),
    ):
        study = write_study(tmp_path, ("confirm_share = 0\n", f"confirm_share = {share}\n"))
        with pytest.raises(SystemExit):
            main(["run", str(study), "--storage", str(tmp_path / "x.journal"), option])
        said = capsys.readouterr().err
        assert ("longer runs" in said) is bool(counted) and "steps" in said
        assert f", and longer runs of up to {counted}: about" in said or not counted


@pytest.mark.parametrize(("answer", "begins"), [("n", False), ("", False), ("y", True)])
def test_a_long_study_is_asked_for_on_a_terminal(
    answer: str, begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, journal = write_study(tmp_path), tmp_path / "x.journal"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "LONG_SECONDS", 0.0)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda *_: answer)
    searched: list[object] = []

    def search(*arguments: object) -> None:
        searched.append(arguments)
        sys.exit(7)

    monkeypatch.setattr(run_command, "_search", search)
    with pytest.raises(SystemExit) as stopped:
        main(["run", str(study), "--storage", str(journal)])
    assert bool(searched) is begins and stopped.value.code == (7 if begins else 130)
    assert not journal.exists()


def test_longer_runs_take_as_many_times_what_the_studys_own_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [str(write_study(tmp_path)), "--storage", str(tmp_path / "x.journal")]
    options = ["--processes", "1", "--no-confirm", "--out", str(tmp_path)]
    assert main(["run", *places, *options]) == 0
    results = load_results(load_study(places[0]), places[2])
    scores = [replace(score, wall_seconds=30.0) for t in results.trials for score in t.scores[:1]]
    trials = [replace(t, scores=(x,)) for t, x in zip(results.trials, scores, strict=True)]
    results, steps = replace(results, trials=tuple(trials)), results.spec.task.steps
    runs = 2 * (1 + len(candidates(results)))
    seconds = 30.0 * 4.0 * math.ceil(runs / 3)
    words = f"up to {runs} runs of {4 * steps} steps, float32 among them: about {said(seconds)}"
    assert longer_runs(results, 4.0, 2, every=False, processes=3) == f"{words} on 3 processes"
    old = [replace(t, scores=(replace(t.scores[0], wall_seconds=0.0),)) for t in trials]
    line = longer_runs(replace(results, trials=tuple(old)), 4.0, 2, every=True)
    assert line.endswith("; how long runs took is not in this journal")
    capsys.readouterr()
    assert main(["confirm", *places, "--steps", "2x", "--processes", "1"]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("policysearch: up to ") and f" of {2 * steps} steps, " in first
    assert " seconds on 1 processes" in first
