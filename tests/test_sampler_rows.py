"""What every sampler that a study may name has to do, on a space of a few decisions."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest

from policysearch.cli import main
from policysearch.space.decided.base import Params
from policysearch.space.space import Space
from policysearch.study.optuna_samplers import OWN, SAMPLERS, STOCK, sampler_named
from policysearch.study.optuna_view import TrialView, sampler_view
from policysearch.study.proposer import Proposer
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

ALL = pytest.mark.parametrize("sampler", SAMPLERS)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("samplers")))


def named(spec: StudySpec, sampler: str, seed: int = 0) -> StudySpec:
    """Return the study with that sampler; skipped where its extra is missing."""
    row = STOCK.get(sampler)
    if row and row.needs and importlib.util.find_spec(row.needs) is None:
        pytest.skip(f"{row.needs} is not installed")
    return replace(spec, study=replace(spec.study, sampler=sampler, seed=seed))


def proposed(spec: StudySpec, count: int = 6, pending: int = 0) -> list[Params]:
    """Return what is proposed one after the other, each told before the next but the `pending`."""
    objective = objective_of(spec)
    plan = spec.study.plan(spec.objectives.names, spec.task.steps, spec.wanted)
    proposer = Proposer(plan, objective, space_of(spec, objective.model))
    known, shown, asked = {*proposer.ladder}, list[TrialView](), list[Params]()
    gaps = np.random.default_rng(0)
    for place in range(count):
        found = proposer.propose(place, shown, asked[: pending and place], known)
        assert found is not None
        (new, gain) = found
        assert new.digest not in known and new.place == place and gain >= 0.0
        known.add(new.digest)
        asked.append(new.params)
        if place >= pending:
            told = asked[place]
            shown.append(
                TrialView(told, float(gaps.random()) / 100, 1.0 + gaps.random(), gaps.random())
            )
    return asked


def _decides(params: Params, space: Space) -> bool:
    """Whether these are decisions of the space."""
    choices = space.choices()
    return params.keys() == choices.keys() and all(params[n] in v for n, v in choices.items())


@ALL
def test_it_proposes_decisions_of_the_space_and_none_twice(sampler: str, spec: StudySpec) -> None:
    spec = named(spec, sampler)
    space = space_of(spec)
    asked = proposed(spec)
    assert all(_decides(params, space) for params in asked)
    assert len({space.policy(params).digest for params in asked}) == len(asked)


@ALL
def test_the_same_seed_proposes_the_same(sampler: str, spec: StudySpec) -> None:
    spec = named(spec, sampler)
    assert proposed(spec) == proposed(spec)


@ALL
def test_what_is_under_way_is_not_proposed_again(sampler: str, spec: StudySpec) -> None:
    """Half of what was asked for is never told."""
    asked = proposed(named(spec, sampler), 6, pending=3)
    assert len({tuple(sorted(params.items())) for params in asked}) == 6


@ALL
def test_a_study_runs_with_it_and_goes_on(sampler: str, spec: StudySpec, tmp_path: Path) -> None:
    spec, path = named(spec, sampler), tmp_path / "a.journal"
    spec = replace(spec, space=replace(spec.space, ladder=()))
    few, more = (replace(spec, study=replace(spec.study, trials=count)) for count in (3, 5))
    with replaced_training():
        assert len(run_study(few, path, processes=0).trials) == 3
        went_on = run_study(more, path, processes=0)
        at_once = run_study(more, tmp_path / "b.journal", processes=0)
    assert len(went_on.trials) == 5 and went_on.trials == at_once.trials


@pytest.mark.parametrize("sampler", STOCK)
def test_it_serves_an_optuna_study(sampler: str, spec: StudySpec) -> None:
    """Shown finished trials, a failed one and one under way."""
    space = space_of(named(spec, sampler))
    names = spec.objectives.names
    rng, params = np.random.default_rng(0), []
    study = optuna.create_study(
        sampler=optuna.samplers.RandomSampler(0), directions=["minimize"] * 3
    )
    for _ in range(4):
        params.append(space.suggest(study.ask()))
    trials = [TrialView(each, float(rng.random()), 1.0, 1.0) for each in params[:3]]
    view = sampler_view(trials, space, names, sampler, params[3:])
    view.sampler = sampler_named(sampler, 3)
    for _ in range(3):
        trial = view.ask()
        assert _decides(space.suggest(trial), space)
        view.tell(trial, state=optuna.trial.TrialState.FAIL)


@pytest.mark.parametrize("sampler", STOCK)
def test_a_missing_extra_is_one_line(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = STOCK[sampler]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    if not row.needs:
        assert isinstance(sampler_named(sampler, 0), optuna.samplers.BaseSampler)
        return
    with pytest.raises(InputError, match=rf"needs {row.needs}, .*; expected pip install .*") as no:
        sampler_named(sampler, 0)
    assert row.install in str(no.value) and "\n" not in str(no.value)
    assert any(name in str(no.value) for name in STOCK if not STOCK[name].needs)


@ALL
def test_a_study_file_may_name_it(sampler: str, tmp_path: Path) -> None:
    path = write_study(tmp_path, ('sampler = "random"', f'sampler = "{sampler}"'))
    assert load_spec(path).study.sampler == sampler
    assert sampler == OWN or (STOCK[sampler].name, bool(STOCK[sampler].about)) == (sampler, True)


def test_an_unknown_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_study(tmp_path, ('sampler = "random"', 'sampler = "tpee"'))
    assert main(["run", str(path)]) == 2
    assert f"'tpee'; expected one of {', '.join(SAMPLERS)}" in capsys.readouterr().err


def test_uniform_formats_that_are_no_preset_wait_for_what_promises_more(spec: StudySpec) -> None:
    """Presets that a study names, and all of `uniform.all`, do not wait."""
    for rest in ("uniform", "uniform.all"):
        ladder = ("bfloat16", rest)
        study = replace(spec, space=replace(spec.space, ladder=ladder))
        study = replace(study, study=replace(study.study, sampler=OWN))
        objective = objective_of(study)
        plan = study.study.plan(study.objectives.names, study.task.steps, study.wanted)
        space = space_of(study, objective.model)
        proposer = Proposer(plan, objective, space)
        uniform = {policy.digest for policy in space.uniform()}
        named = {digest for digest, (_, names) in proposer.ladder.items() if names}
        weighed = {asked.digest for asked in proposer.weighed}
        assert weighed == (uniform - named if rest == "uniform" else set())
        assert bool(weighed) == (rest == "uniform")
        assert proposer.first == proposer.ladder.keys() - weighed
