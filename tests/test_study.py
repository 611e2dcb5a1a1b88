"""The search: repeatable, resumable, no policy trained twice, journals that are refused or used."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from policysearch.objective import DIVERGED_GAP, Objective
from policysearch.search import identity, storage
from policysearch.search.front import dominates
from policysearch.search.results import Results
from policysearch.search.samplers import SAMPLERS
from policysearch.search.spec import StudySpec, load_spec
from policysearch.search.study import GAP_UNIT, load_results, run_study
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


def seen(results: Results) -> list[object]:
    """Everything about the trials but their numbers."""
    return [replace(trial, number=0) for trial in results.trials]


def test_the_ladder_comes_first_and_float32_before_it(journal: Path, spec: StudySpec) -> None:
    results = load_results(spec, journal)
    assert len(results.trials) == spec.study.trials
    # mindspore.O0 is the policy float32 and is not trained again.
    assert [t.presets for t in results.trials[:3]] == [
        ("float32", "mindspore.O0"),
        ("bfloat16",),
        ("apex.O3",),
    ]
    assert results.trials[0].loss_gap == 0.0
    assert results.trials[0].cost.speedup == 1.0
    assert results.noise_gap is not None and 0.0 < results.noise_gap < 1e-3


def test_scores_are_those_of_the_objective(journal: Path, spec: StudySpec) -> None:
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack, spec.cost.batch_size)
    trial = load_results(spec, journal).trials[-1]
    assert trial.scores == tuple(objective.evaluate(trial.policy, s) for s in spec.study.seeds)
    assert trial.loss_gap == pytest.approx(sum(s.loss_gap for s in trial.scores) / 2)


def test_two_runs_give_the_same_trials_and_front_in_processes_or_not(
    journal: Path, spec: StudySpec, tmp_path: Path
) -> None:
    again = run_study(spec, tmp_path / "again.journal", processes=2)
    assert again == load_results(spec, journal)
    assert again.front == load_results(spec, journal).front


@pytest.mark.parametrize("moment", ["training", "telling"])
@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"gp"}))
def test_a_stopped_study_goes_on_as_if_it_had_not_been(
    sampler: str, moment: str, spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(spec, study=replace(spec.study, sampler=sampler, trials=24, workers=4))
    whole = run_study(spec, tmp_path / "whole.journal", processes=1)
    path = tmp_path / "stopped.journal"

    def stop_training(trained: float, results: Results | None) -> None:
        if trained >= 21.5:
            raise KeyboardInterrupt

    told: list[str] = []
    set_constraint = optuna.Trial.set_constraint

    def stop_telling(trial: optuna.Trial, key: str, value: float) -> None:
        told.append(key)
        if len(told) == 24:
            raise KeyboardInterrupt
        set_constraint(trial, key, value)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if moment == "telling":
            patch.setattr(optuna.Trial, "set_constraint", stop_telling)
        progress = stop_training if moment == "training" else None
        run_study(spec, path, processes=1, progress=progress)
    assert not storage.open_study(path, "tiny").get_trials(states=(TrialState.RUNNING,))
    resumed = run_study(spec, path, processes=1)
    assert seen(resumed) == seen(whole)
    assert [t.policy for t in resumed.front] == [t.policy for t in whole.front]


def test_no_policy_and_no_seed_is_trained_twice(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int, float]] = []
    original = Objective.measure

    def counted(self: Objective, policy, seed, jitter=0.0):  # type: ignore[no-untyped-def]
        calls.append((policy.digest, seed, jitter))
        return original(self, policy, seed, jitter)

    monkeypatch.setattr(Objective, "measure", counted)
    small = replace(spec.space, formats=("float32",), ops=(), loss_scales=("none",))
    spec = replace(spec, space=small, study=replace(spec.study, trials=50))
    results = run_study(spec, tmp_path / "small.journal", processes=1)
    # float32 with and without masters, and two presets: the space has no more.
    assert len(results.trials) < 10
    assert len(calls) == len(set(calls)) == 2 * len(results.trials) + 2


def test_diverged_runs_are_finite_worst_and_never_on_the_front(
    spec: StudySpec, tmp_path: Path
) -> None:
    task = replace(spec.task, learning_rate=3.0)
    space = replace(spec.space, ladder=("apex.O3",), log2_scale=(24, 24))
    spec = replace(spec, task=task, space=space)
    results = run_study(spec, tmp_path / "d.journal", processes=1)
    for study_trial in storage.open_study(tmp_path / "d.journal", "tiny").get_trials():
        assert study_trial.state != TrialState.FAIL
        assert all(math.isfinite(value) for value in study_trial.values)
    assert not any(trial.diverged for trial in results.front)
    assert all(t.loss_gap == DIVERGED_GAP for t in results.trials if t.diverged)


def test_the_sampler_is_told_the_gap_and_costs(journal: Path, spec: StudySpec) -> None:
    results = load_results(spec, journal)
    study = storage.open_study(journal, "tiny")
    assert [d.name for d in study.directions] == ["MINIMIZE", "MAXIMIZE", "MINIMIZE"]
    for trial in results.trials:
        told = study.trials[trial.number].values
        assert told[0] == pytest.approx(math.asinh(max(0.0, trial.loss_gap) / GAP_UNIT))
        assert told[1:] == [trial.cost.speedup, trial.cost.memory_ratio]


def test_the_front_is_of_the_told_objectives(journal: Path, spec: StudySpec) -> None:
    results = load_results(spec, journal)
    on_front = {trial.number for trial in results.front}
    for trial in results.trials:
        beaten = any(dominates(results.point(t), results.point(trial)) for t in results.trials)
        equal = any(results.point(t) == results.point(trial) for t in results.front)
        assert (trial.number in on_front) <= (not beaten)
        assert beaten or equal
    assert results.knee() in results.front
    assert results.fastest().cost.speedup == max(t.cost.speedup for t in results.front)
    with pytest.raises(InputError, match=r"max-gap: -9\.0; expected at least"):
        results.fastest(-9.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 7}, "study file differs: study.seed: 7; expected 0"),
        ({"workers": 3}, "study file differs: study.workers: 3; expected 2"),
    ],
)
def test_results_of_another_study_file_are_refused(
    journal: Path, spec: StudySpec, changed: dict[str, Any], message: str
) -> None:
    before = journal.read_bytes()
    other = replace(spec, study=replace(spec.study, **changed))
    for act in (run_study, load_results):
        with pytest.raises(InputError, match=message):
            act(other, journal)
    assert journal.read_bytes() == before


@pytest.mark.parametrize("part", ["data", "code"])
def test_results_of_other_data_or_code_are_refused(
    journal: Path, spec: StudySpec, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal.read_bytes()
    if part == "code":
        monkeypatch.setattr(identity, "code_fingerprint", lambda: "f" * 64)
    else:
        monkeypatch.setattr("policysearch.data.datasets.Dataset.fingerprint", "f" * 64)
    with pytest.raises(InputError, match=f"{part} differs: ffffffffffff; expected"):
        run_study(spec, journal)
    assert journal.read_bytes() == before


def test_more_trials_may_be_asked_of_an_existing_study(
    journal: Path, spec: StudySpec, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.journal"
    copy.write_bytes(journal.read_bytes())
    longer = run_study(spec.with_trials(8), copy, processes=1)
    assert longer.trials[:6] == load_results(spec, journal).trials
    assert len(longer.trials) == 8


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_command_resumes(sent: signal.Signals, spec: StudySpec, tmp_path: Path) -> None:
    study = write_study(tmp_path, ("trials = 6", "trials = 10"), ("steps = 6", "steps = 60"))
    path = tmp_path / "killed.journal"
    command = [sys.executable, "-m", "policysearch", "run", str(study), "--storage", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # the tests may run in the background, where SIGINT is ignored, by children too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while process.poll() is None and not (path.exists() and b"measured:" in path.read_bytes()):
        time.sleep(0.01)
    process.send_signal(sent)
    _, errors = process.communicate()
    if sent == signal.SIGINT:
        assert process.returncode == 130
        assert errors.splitlines()[-1].startswith("policysearch: interrupted; `policysearch run")
        assert "Traceback" not in errors
    given = load_spec(study)
    resumed = run_study(given, path, processes=1)
    whole = run_study(given, tmp_path / "whole.journal", processes=1)
    assert seen(resumed) == seen(whole)


def test_the_gp_sampler_says_what_it_needs(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    gp = replace(spec, study=replace(spec.study, sampler="gp"))
    with pytest.raises(InputError, match=r"'gp': needs torch.*policysearch\[torch\]"):
        run_study(gp, tmp_path / "gp.journal")
    assert not (tmp_path / "gp.journal").exists()


@pytest.mark.torch
def test_the_gp_sampler_runs_and_repeats(spec: StudySpec, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    gp = replace(spec, study=replace(spec.study, sampler="gp", trials=12))
    first, second = (run_study(gp, tmp_path / name, processes=1) for name in ("a", "b"))
    assert first == second


def test_policies_are_stored_as_json(journal: Path) -> None:
    study = storage.open_study(journal, "tiny")
    for trial in study.trials:
        assert json.loads(trial.user_attrs["policy"])["version"] == 1
