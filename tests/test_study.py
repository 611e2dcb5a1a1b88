"""The search: repeatable, resumable from anywhere, no policy trained twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policysearch.cost.price import MODEL_RESOLUTION
from policysearch.objective.objective import Objective
from policysearch.search.hypervolume import dominates
from policysearch.study.journal import identity
from policysearch.study.journal.trials import Trial
from policysearch.study.opening import load_results
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec, objective_of
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import BARE_SAMPLERS, replaced_training, write_study


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def journal(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "tiny.journal"
    run_study(spec, path, processes=0)
    return path


@pytest.fixture
def copy(journal: Path, tmp_path: Path) -> Path:
    path = tmp_path / "copy.journal"
    path.write_bytes(journal.read_bytes())
    return path


def test_the_ladder_comes_first_and_float32_before_it(journal: Path, spec: StudySpec) -> None:
    results = load_results(spec, journal)
    assert len(results.trials) == spec.study.trials
    assert [t.number for t in results.trials] == list(range(6))
    # TF32 is a rival on this device, unnamed. mindspore.O0 is float32 and is not trained again.
    assert [t.presets for t in results.trials[:3]] == [
        ("float32", "mindspore.O0"),
        ("torch.tf32",),
        ("bfloat16",),
    ]
    assert results.trials[0].loss_gap == 0.0
    assert results.trials[0].cost.speedup == 1.0
    assert results.noise_gap is not None and 0.0 < results.noise_gap < 1e-3


def test_scores_are_those_of_the_objective(journal: Path, spec: StudySpec) -> None:
    objective = objective_of(spec)
    trial = load_results(spec, journal).trials[-1]
    assert trial.scores == tuple(objective.evaluate(trial.policy, s) for s in spec.study.seeds)
    assert trial.loss_gap == pytest.approx(sum(s.loss_gap for s in trial.scores) / 2)
    assert trial.loss_gap != 0.0


def test_two_runs_give_the_same_trials_and_front_in_processes_or_not(
    journal: Path, spec: StudySpec, tmp_path: Path
) -> None:
    again = run_study(spec, tmp_path / "again.journal", processes=2)
    assert again == load_results(spec, journal)
    assert again.front == load_results(spec, journal).front


@pytest.mark.parametrize("sampler", BARE_SAMPLERS)
def test_a_stopped_study_goes_on_as_if_it_had_not_been(
    sampler: str, spec: StudySpec, tmp_path: Path
) -> None:
    """Stopped in float32, in the ladder, in the search and near its end, once after the other."""
    spec = replace(spec, study=replace(spec.study, sampler=sampler, trials=16, workers=4))
    spec = replace(spec, space=replace(spec.space, ladder=("apex.O3", "uniform")))
    with replaced_training() as trained:
        whole = run_study(spec, tmp_path / "whole.journal", processes=0)
    wanted = list(trained)
    path = tmp_path / "stopped.journal"
    with replaced_training() as trained:
        for stop_at in (0.5, 3.5, 11.0, 14.5):
            before = len(trained)

            def stop(done: float, _: Callable[[], Results], stop_at: float = stop_at) -> None:
                if done >= stop_at:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                run_study(spec, path, processes=0, progress=stop)
            assert before < len(trained) < len(wanted)
        resumed = run_study(spec, path, processes=0)
    assert resumed == whole
    assert trained == wanted


def test_no_policy_and_no_seed_is_trained_twice(spec: StudySpec, tmp_path: Path) -> None:
    small = replace(spec.space, formats=("float32",), ops=(), loss_scales=("none",))
    spec = replace(spec, space=small, study=replace(spec.study, trials=50))
    with replaced_training() as trained:
        results = run_study(spec, tmp_path / "small.journal", processes=0)
    # float32 with and without masters, and two presets: the space has no more.
    assert len(results.trials) < 10
    assert len(trained) == len(set(trained)) == 2 * len(results.trials) + 2


def test_optuna_is_told_the_gap_in_nats_and_the_costs(journal: Path, spec: StudySpec) -> None:
    import optuna

    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study = optuna.load_study(study_name="tiny", storage=optuna.storages.JournalStorage(backend))
    assert study.metric_names == ["loss_gap", "speedup", "memory_ratio"]
    assert [d.name for d in study.directions] == ["MINIMIZE", "MAXIMIZE", "MINIMIZE"]
    trials = load_results(spec, journal).trials
    assert len(study.trials) == len(trials)
    for trial, told in zip(trials, study.trials, strict=True):
        assert told.values == [trial.loss_gap, trial.cost.speedup, trial.cost.memory_ratio]
        assert told.user_attrs["name"] == trial.name
        assert json.loads(told.user_attrs["policy"])["version"] == 2
        assert ("params_are" in told.user_attrs) == bool(trial.presets)
    # An O3 level has float16 everywhere, which this space does not offer.
    assert study.trials[2].user_attrs["params_are"] == "the nearest"
    assert study.trials[0].user_attrs["params_are"] in ("exact", "the nearest")


def as_good(one: Trial, other: Trial, results: Results) -> bool:
    """Whether `one` is nowhere worse than `other` by as much as the model can tell."""
    least = results.matters_gap  # gaps below it are equal
    return (
        max(results.counted_gap(one), least) <= max(results.counted_gap(other), least)
        and one.cost.speedup * (1.0 + MODEL_RESOLUTION["speedup"]) > other.cost.speedup
        and one.cost.memory_ratio
        < other.cost.memory_ratio * (1.0 + MODEL_RESOLUTION["memory_ratio"])
    )


def test_the_front_is_of_the_told_objectives(journal: Path, spec: StudySpec) -> None:
    results = load_results(spec, journal)
    on_front = {trial.number for trial in results.front}
    for trial in results.trials:
        beaten = any(dominates(results.point(t), results.point(trial)) for t in results.trials)
        assert (trial.number in on_front) <= (not beaten)
        better = {t.number for t in results.front if t != trial and as_good(t, trial, results)}
        assert {t.number for t in results.beaten_by(trial)} == better
        assert bool(better) == (trial.number not in on_front)
    assert results.knee() in results.front
    assert results.fastest().cost.speedup == max(t.cost.speedup for t in results.front)
    with pytest.raises(InputError, match=r"max-gap: -9\.0; expected at least"):
        results.fastest(-9.0)


def test_more_trials_may_be_asked_of_an_existing_study(
    copy: Path, journal: Path, spec: StudySpec, tmp_path: Path
) -> None:
    longer = run_study(spec.with_trials(9), copy, processes=0)
    assert longer.trials[:6] == load_results(spec, journal).trials
    assert longer == run_study(spec.with_trials(9), tmp_path / "whole.journal", processes=0)


@pytest.mark.parametrize("part", ["task", "data"])
def test_runs_of_another_task_or_other_data_are_refused(
    journal: Path, spec: StudySpec, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal.read_bytes()
    if part == "task":
        spec = replace(spec, task=replace(spec.task, learning_rate=0.25))
        message = r"study file differs: task\.learning_rate: 0\.25; expected 0\.1"
        with pytest.raises(InputError, match=message):
            load_results(spec, journal)
    else:
        monkeypatch.setattr("policysearch.data.datasets.Dataset.fingerprint", "f" * 64)
        message = "data differs: ffffffffffff; expected"
    for accept in (False, True):
        with pytest.raises(InputError, match=message):
            run_study(spec, journal, accept_changes=accept)
    assert journal.read_bytes() == before


CHANGES: dict[str, Callable[[StudySpec], StudySpec]] = {
    "device": lambda s: replace(s, cost=replace(s.cost, device="A100-SXM4-80GB")),
    "stack": lambda s: replace(s, cost=replace(s.cost, stack="torch.eager")),
    "batch": lambda s: replace(s, cost=replace(s.cost, batch_size=512)),
    "sampler": lambda s: replace(s, study=replace(s.study, sampler="tpe")),
    "fewer seeds": lambda s: replace(s, study=replace(s.study, seeds=(1,))),
    "workers": lambda s: replace(s, study=replace(s.study, workers=3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_repricing_trains_nothing(name: str, copy: Path, spec: StudySpec) -> None:
    before = load_results(spec, copy)
    changed = CHANGES[name](spec)
    shown = load_results(changed, copy)
    with replaced_training() as trained:
        after = run_study(changed, copy, processes=0)
    assert trained == []
    assert shown == after
    assert [t.digest for t in after.trials] == [t.digest for t in before.trials]
    if name in ("device", "stack", "batch"):
        assert [t.cost for t in after.trials] != [t.cost for t in before.trials]
        fresh = Objective(
            spec.task, changed.cost.device, changed.cost.stack, changed.cost.batch_size
        )
        assert [t.cost for t in after.trials] == [fresh.price(t.policy) for t in after.trials]


def test_another_seed_or_preset_trains_only_what_is_new(copy: Path, spec: StudySpec) -> None:
    more = replace(spec, study=replace(spec.study, seeds=(0, 1, 5)))
    with replaced_training() as trained:
        seeded = run_study(more, copy, processes=0)
    assert {seed for _, seed, _ in trained} == {5}
    assert len(trained) == len(set(trained)) == 6 + 1
    assert all(len(trial.scores) == 3 for trial in seeded.trials)
    ladder = replace(more, space=replace(more.space, ladder=(*more.space.ladder, "float16")))
    with replaced_training() as trained:
        laddered = run_study(ladder, copy, processes=0)
    assert laddered.trials[:6] == seeded.trials
    assert laddered.trials[6].presets == ("float16",)
    assert {digest for digest, _, _ in trained} == {laddered.trials[6].digest}
    assert len(trained) == 3


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
    gp = replace(spec, study=replace(spec.study, sampler="gp", trials=12))
    first, second = (run_study(gp, tmp_path / name, processes=0) for name in ("a", "b"))
    assert first == second


def changed_code(monkeypatch: pytest.MonkeyPatch, **parts: dict[str, str]) -> None:
    """Let the package believe that its code or libraries are others from here on."""
    for name, changes in parts.items():
        old: Any = getattr(identity, name)
        monkeypatch.setattr(identity, name, lambda *a, o=old, c=changes: {**o(*a), **c})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"code_fingerprints": {"rounding/_rounding.c": "0"}},
            r"code differs: rounding/_rounding\.c;",
        ),
        ({"libraries": {"numpy": "9.9"}}, r"libraries differ: numpy 9\.9 \(was \d"),
        ({"libraries": {"blas": "openblas Haswell"}}, r"libraries differ: blas openblas Haswell"),
    ],
)
def test_other_code_or_libraries_are_named_and_refused_unless_told_to_mix(
    parts: dict[str, dict[str, str]],
    message: str,
    copy: Path,
    spec: StudySpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = copy.read_bytes()
    assert load_results(spec, copy).mixed == ()
    changed_code(monkeypatch, **parts)
    with pytest.raises(InputError, match=message):
        run_study(spec.with_trials(8), copy, processes=0)
    assert copy.read_bytes() == before
    mixed = run_study(spec.with_trials(8), copy, processes=0, accept_changes=True)
    assert len(mixed.trials) == 8
    assert [bool(part in mixed.mixed[0]) for part in ("code", "libraries")].count(True) == 1
    # It is on record: the next run needs no telling, and still says so.
    assert run_study(spec.with_trials(9), copy, processes=0).mixed == mixed.mixed
