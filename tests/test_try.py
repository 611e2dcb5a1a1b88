"""Policies tried by hand: a trial that every view shows, and that the search never notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.report.plots import VIEWS, figure
from policysearch.study.opening import load_results
from policysearch.study.questions.by_hand import try_policy
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import measured, replaced_training, write_study

LAYERS = ("flatten", "fc1", "tanh1", "fc2")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("try")))


def searched(results: Results) -> list[object]:
    """What the search found, without the numbers that trials tried between them moved on."""
    return [replace(trial, number=-1) for trial in results.trials if not trial.by_hand]


# In the ladder, in the search, near its end: by our own and by Optuna's, which are told otherwise.
@pytest.mark.parametrize(("sampler", "stop_at"), [("random", 3.5), ("gain", 9.0), ("tpe", 12.5)])
def test_the_search_goes_on_as_if_nothing_had_been_tried(
    sampler: str, stop_at: float, spec: StudySpec, tmp_path: Path
) -> None:
    spec = replace(spec, study=replace(spec.study, sampler=sampler, trials=14, workers=4))

    def stop(done: float, _: Callable[[], Results]) -> None:
        if done >= stop_at:
            raise KeyboardInterrupt

    with replaced_training():
        whole = run_study(spec, tmp_path / "whole.journal", processes=0)
        path = tmp_path / "stopped.journal"
        with pytest.raises(KeyboardInterrupt):
            run_study(spec, path, processes=0, progress=stop)
        _, number, new = try_policy(spec, path, preset("te.current", LAYERS), processes=0)
        resumed = run_study(spec, path, processes=0)
    assert new and resumed.trial(number).by_hand
    assert searched(resumed) == list(map(lambda t: replace(t, number=-1), whole.trials))
    assert len(resumed.trials) == len(whole.trials) + 1


def test_a_policy_that_the_search_comes_to_later_is_trained_once(
    spec: StudySpec, tmp_path: Path
) -> None:
    with replaced_training():
        whole = run_study(spec, tmp_path / "whole.journal", processes=0)
    later = whole.trials[-1]
    path = tmp_path / "tried.journal"
    with replaced_training() as trained:
        _, number, _ = try_policy(spec, path, later.policy, processes=0)
        assert number == 0
        results = run_study(spec, path, processes=0)
    assert len(trained) == len(set(trained))
    assert {t.digest: t.scores for t in results.trials} == {
        t.digest: t.scores for t in whole.trials
    }
    assert results.trial(0).digest == later.digest and results.trial(0).by_hand
    # The search asked for as many policies as it would have.
    assert [t.digest for t in results.trials[1:]] == [t.digest for t in whole.trials[:-1]]


def test_runs_that_are_there_are_used_again(spec: StudySpec, tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    with replaced_training() as trained:
        run_study(spec, path, processes=0)
        before, done = path.read_bytes(), len(trained)
        results, number, new = try_policy(spec, path, preset("bfloat16", LAYERS), processes=0)
        assert not new and len(trained) == done and path.read_bytes() == before
        assert results.trial(number).presets == ("bfloat16",)
        fresh = preset("te.current", LAYERS)
        _, number, new = try_policy(spec, path, fresh, processes=0)
        assert new and number == 6
        assert [seed for digest, seed, _ in trained[done:] if digest == fresh.digest] == [0, 1]
        assert len(trained) == done + 2
        assert try_policy(spec, path, replace(fresh, name="mine"), processes=0)[1:] == (6, False)
        more = replace(spec, study=replace(spec.study, seeds=(0, 1, 5)))
        assert len(run_study(more, path, processes=0).trial(6).scores) == 3


def test_what_is_tried_is_in_every_view(spec: StudySpec, tmp_path: Path) -> None:
    def good(policy: Policy, seed: int) -> Measurement:
        close = policy.name in ("te.current", "float32")
        return Measurement(0.5, 0.9, None, 0, (), ()) if close else measured(policy, seed)

    path = tmp_path / "x.journal"
    with replaced_training(good):
        run_study(spec, path, processes=0)
        try_policy(spec, path, preset("te.current", LAYERS), processes=0)
    results = load_results(spec, path)
    (row,) = (row for row in results.rows() if row.by_hand)
    assert row.policy == "te.current" and row.trial == 6
    assert "by_hand" in results.to_frame().columns
    labels = figure(results, VIEWS[0]).axes[0].get_legend_handles_labels()[1]
    assert "tried by hand" in labels


def test_a_policy_that_does_not_fit_leaves_no_journal(spec: StudySpec, tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    with pytest.raises(InputError, match="layers"):
        try_policy(spec, path, preset("bfloat16", ("conv1", "fc1")), processes=0)
    assert not path.exists()


@pytest.mark.usefixtures("one_process")
def test_the_command_prints_row_counts_and_standing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = str(write_study(tmp_path))
    assert main(["try", "preset:float8", "--study", study, "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert "float8 (by hand)" in printed and "overflows" in printed and "fc1" in printed
    assert "the only policy so far: `policysearch run" in printed
    assert main(["run", study, "--processes", "1"]) == 0
    assert "float8 (by hand)" in capsys.readouterr().out
    assert main(["try", "preset:float8", "--study", study]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("verdict: trains")
    assert "\n\nalready a trial of tiny; nothing is added" in printed
    assert "on the front" in printed
    assert main(["try", "preset:float8", "--float32", "fc1", "--study", study]) == 0
    shown = capsys.readouterr().out
    assert "float8, float32 in fc1 (by hand)" in shown
    rows = {line.split()[0]: line.split()[1] for line in shown.splitlines() if "%" in line}
    assert (rows["fc1"], rows["fc2"]) == ("float32", "float8_e4m3fn")
    assert main(["try", "preset:float8", "--float32", "fc9", "--study", study]) == 2
    assert "--float32: 'fc9'; expected one of flatten, fc1" in capsys.readouterr().err
    assert main(["verify", "given.py", "--float32", "fc1", "--study", study]) == 2
    assert "--float32: of given.py; expected it of a policy" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{}")
    assert main(["try", "bad.json", "--study", study]) == 2
    assert "bad.json: missing key" in capsys.readouterr().err
