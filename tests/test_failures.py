"""Failures are results: what diverges, raises or is killed is recorded, and the study goes on."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from policysearch import api
from policysearch.cli import main
from policysearch.objective.objective import Objective
from policysearch.objective.score import DIVERGED_GAP, Failure, Measurement
from policysearch.optimizers.optimizer import OptimizerKind, trained
from policysearch.policy.policy import Policy
from policysearch.study.opening import load_results
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.study.workers import executors
from policysearch.study.workers.executors import Job, ProcessExecutor, SerialExecutor
from policysearch.values import InputError
from tests.studies import measured, replaced_training, write_study

STUDIES = Path(__file__).parents[1] / "studies"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study")))


def diverged(_: Policy, seed: int) -> Measurement:
    return Measurement(None, 0.1, 12 + seed, 0, (("fc2", 7), ("fc1", 3)), ())


def is_float32(policy: Policy) -> bool:
    return all(layer.compute == "float32" for _, layer in policy.layers) and policy.master_weights


def test_fewer_processes_than_none_are_refused(spec: StudySpec, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="processes: -1; expected"):
        run_study(spec, tmp_path / "x.journal", processes=-1)


def used(spec: StudySpec, path: Path, stand: object, folder: Path) -> Results:
    """Run, stop, resume, show, plot and export a study; return its results."""
    with replaced_training(stand):  # type: ignore[arg-type]
        run_study(spec.with_trials(3), path, processes=0)
        results = run_study(spec, path, processes=0)
    assert load_results(spec, path) == results
    study = write_study(folder, ("trials = 6", f"trials = {spec.study.trials}"))
    places = [str(study), "--storage", str(path)]
    assert main(["show", *places]) == 0 and main(["show", *places, "--csv"]) == 0
    assert main(["plot", *places, "--out", str(folder)]) == 0
    number = results.trials[0].number
    assert main(["export", *places, "--trial", str(number), "--out", str(folder)]) == 0
    knee = main(["export", *places, "--pick", "knee", "--out", str(folder)])
    assert knee == (0 if results.front else 2)
    return results


@pytest.mark.parametrize("share", ["one", "half", "all but float32", "all"])
def test_studies_with_diverged_policies_run_resume_show_plot_and_export(
    share: str, spec: StudySpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(spec, study=replace(spec.study, trials=8))
    lost: dict[str, bool] = {}
    turns = itertools.count()

    chosen: dict[str, Callable[[Policy], bool]] = {
        "one": lambda policy: not is_float32(policy) and not any(lost.values()),
        "half": lambda policy: not is_float32(policy) and next(turns) % 2 == 0,
        "all but float32": lambda policy: not is_float32(policy),
        "all": lambda policy: True,
    }

    def stand(policy: Policy, seed: int) -> Measurement:
        if policy.digest not in lost:
            lost[policy.digest] = chosen[share](policy)
        return diverged(policy, seed) if lost[policy.digest] else measured(policy, seed)

    results = used(spec, tmp_path / "d.journal", stand, tmp_path)
    count = sum(trial.diverged for trial in results.trials)
    # Where float32 diverges no more is trained than was under way beside it.
    whole = spec.study.workers if share == "all" else 8
    assert len(results.trials) == whole and not results.failed
    assert count == sum(lost.values()) and count >= 1
    trained = 8 - sum(is_float32(trial.policy) for trial in results.trials)
    wanted = {"one": count == 1, "half": 2 <= count <= 5, "all": count == whole}
    assert wanted.get(share, count == trained > 4)
    assert all(trial.loss_gap == DIVERGED_GAP for trial in results.trials if trial.diverged)
    assert not any(trial.diverged for trial in results.front)
    out = capsys.readouterr().out
    assert f"{count} diverged" in out
    assert "diverged in step 12, most overflows in fc2 (seed 0)" in out
    assert ("float32 itself" in out) == (share == "all")
    assert ("task.learning_rate (now 0.1)" in out) == (share == "all")


def test_a_real_divergence_is_kept_with_its_step(spec: StudySpec, tmp_path: Path) -> None:
    """The recipe that bricked studies: Adam, where a pure float16 level is lost at once."""
    spec = replace(
        spec,
        task=replace(spec.task, optimizer="adam", learning_rate=0.001, steps=20),
        space=replace(spec.space, ladder=("apex.O3",)),
    )
    path = tmp_path / "adam.journal"
    results = run_study(spec, path, processes=0)
    lost = [trial for trial in results.trials if trial.diverged]
    assert [t.presets for t in lost if t.presets] == [("apex.O3",)]
    assert "diverged in step" in lost[0].divergence
    assert run_study(spec, path, processes=0) == load_results(spec, path) == results
    assert results.front and results.float32_fault == ""


@pytest.mark.usefixtures("one_process")
def test_float32_that_really_diverges_is_said_plainly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, ("rate = 0.1\nsteps = 6", "rate = 1e6\nsteps = 12"))
    places = [str(study), "--storage", str(tmp_path / "x.journal")]
    assert main(["run", *places, "--out", str(tmp_path)]) == 0
    assert main(["run", *places, "--out", str(tmp_path)]) == 0
    results = api.load_results(api.load_study(study), tmp_path / "x.journal")
    assert results.trials[0].presets[0] == "float32" and results.trials[0].diverged
    out = capsys.readouterr().out
    assert "has not learned here: float32 itself diverged in step" in out
    assert "lower task.learning_rate (now 1e+06)" in out


def poisoned(policy: Policy, seed: int) -> Measurement:
    """Raise for one policy in five, never for float32."""
    if int(policy.digest, 16) % 5 == 0 and not is_float32(policy):
        raise ValueError(f"shapes do not fit\nin {policy.name}")
    return measured(policy, seed)


def test_poisoned_policies_are_results_with_a_reason(
    spec: StudySpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = replace(spec, study=replace(spec.study, trials=50, seeds=(0,)))
    path = tmp_path / "p.journal"
    with replaced_training(poisoned) as trained:
        results = run_study(spec, path, processes=0)
    assert len(results.trials) + len(results.failed) == 50
    assert 3 <= len(results.failed) <= 20
    assert all(t.reason.startswith("ValueError: shapes do not fit in") for t in results.failed)
    assert len(trained) == len(set(trained))  # A mistake that must repeat is not tried again.
    with replaced_training() as trained:
        assert run_study(spec, path, processes=0) == results
        assert trained == []
        healed = run_study(spec, path, processes=0, retry_failed=True)
    assert len(trained) == len(results.failed) and not healed.failed
    assert {t.number for t in healed.trials} == set(range(50))


def test_ten_poisoned_of_fifty_give_forty_results_and_ten_reasons(
    spec: StudySpec, tmp_path: Path
) -> None:
    spec = replace(spec, study=replace(spec.study, trials=50, seeds=(0,)))
    order: dict[str, int] = {}

    def stand(policy: Policy, seed: int) -> Measurement:
        if order.setdefault(policy.digest, len(order)) % 5 == 4:
            raise MemoryError
        return measured(policy, seed)

    with replaced_training(stand) as trained:
        results = run_study(spec, tmp_path / "p.journal", processes=0)
    assert (len(results.trials), len(results.failed)) == (40, 10)
    assert {trial.reason for trial in results.failed} == {"MemoryError"}
    # Memory may be there another time: three attempts each, none for what went well.
    tried = [digest for digest, _, jitter in trained if not jitter]
    assert sorted(tried.count(digest) for digest in set(tried)) == [1] * 40 + [3] * 10


def test_memory_that_comes_back_is_a_result(spec: StudySpec) -> None:
    calls = itertools.count()

    def stand(policy: Policy, seed: int) -> Measurement:
        if next(calls) < 2:
            raise MemoryError
        return measured(policy, seed)

    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    with replaced_training(stand):
        [(index, outcome)] = SerialExecutor(objective).run([Job(objective.float32, 0)])
    assert index == 0 and isinstance(outcome, Measurement) and next(calls) == 3


def _killed(job: Job) -> tuple[object, bool]:
    """Stand-in for a run in a worker: the policy called "killer" is one that takes it along."""
    if job.policy.name == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    return Failure(f"ran {job.policy.name} {job.seed}"), False


def test_a_killed_worker_takes_only_its_own_run_along(
    spec: StudySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    killer = replace(objective.float32, name="killer")
    jobs = [Job(objective.float32, 0), Job(killer, 1), *(Job(objective.float32, s) for s in (2, 3))]
    monkeypatch.setattr(executors, "_measure", _killed)
    monkeypatch.setattr(executors, "ATTEMPTS", 2)  # each starts a process
    with ProcessExecutor(objective, 2) as executor:
        outcomes = dict(executor.run(jobs))
    assert sorted(outcomes) == [0, 1, 2, 3]
    killed = outcomes.pop(1)
    assert isinstance(killed, Failure) and "killed from outside 2 times" in killed.reason
    assert all(o == Failure(f"ran float32 {seed}") for seed, o in outcomes.items())


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", trained())
@pytest.mark.parametrize("name", ["mlp-digits", "lenet5-digits", "lenet5-fashion"])
def test_the_shipped_studies_pass_with_every_optimizer(
    name: str, optimizer: OptimizerKind, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name == "lenet5-fashion":
        request.getfixturevalue("fashion_mnist_folder")
    spec = load_spec(STUDIES / f"{name}.toml")
    rate = 0.001 if optimizer.startswith("adam") else spec.task.learning_rate
    task = replace(spec.task, optimizer=optimizer, learning_rate=rate)
    study = replace(spec.study, trials=12, seeds=(0,))
    spec = replace(spec, task=task, study=study)
    results = run_study(spec, tmp_path / "s.journal")
    assert len(results.trials) == 12 and not results.failed and results.front
    assert load_results(spec, tmp_path / "s.journal") == results
