"""A study that looks at policies first: what looks propose, and what is trained after them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from policysearch.objective.score import Measurement
from policysearch.policy.policy import from_json
from policysearch.report.table import front_table
from policysearch.search.fidelity import RUNS_PER_PLACE
from policysearch.study.journal.records import RunKey
from policysearch.study.opening import load_results
from policysearch.study.proposer import Proposer
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.study.study import run_study
from tests.looks import (
    CHANGES,
    KINDS,
    PLACES,
    SEEDS,
    Kind,
    Told,
    front_of,
    is_look,
    records_at,
)
from tests.studies import WITHOUT_TF32, write_study

one_kind = pytest.mark.parametrize("kind", KINDS[:1], ids=["short runs"], indirect=True)
"""Of what the two kinds of looks have in common."""


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def spec(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    looks = ("short_runs = true", kind.key)
    return load_spec(write_study(tmp_path_factory.mktemp("study"), WITHOUT_TF32, *CHANGES, looks))


@pytest.fixture(scope="module")
def finished(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Path]:
    told, path = Told(), tmp_path_factory.mktemp("finished") / "j"
    run_study(spec, path, executor=told)
    return told, path


def test_what_looks_propose_is_trained_after_the_ladder(
    spec: StudySpec, kind: Kind, finished: tuple[Told, Path]
) -> None:
    told, path = finished
    results = load_results(spec, path)
    looks = told.looks
    taken = {(job.until, job.seed, job.jitter, job.width) for job in looks}
    assert taken == {(kind.until, 0, 0.0, kind.width)}
    digests = [job.policy.digest for job in looks]
    assert len(set(digests)) == len(digests) == RUNS_PER_PLACE * PLACES
    first = [is_look(job) for job in told.jobs]
    assert first == [False] * 4 + [True] * (kind.own + len(looks)) + [False] * (
        len(first) - 4 - kind.own - len(looks)
    )
    records = records_at(path)
    # told of each look in order, but of those that the other worker may be at
    told_of = [look.told for look in records.low_fidelity.values()]
    assert told_of == [max(0, place - spec.study.workers + 1) for place in range(len(looks))]
    trained = [asked.digest for asked in sorted(records.searched, key=lambda a: a.place)]
    ladder = [asked.digest for asked in records.searched if asked.start]
    assert set(trained[: len(ladder)]) == set(ladder)
    front = front_of(spec, told)
    promised = list(takewhile(lambda digest: digest in digests, trained[len(ladder) :]))
    # All of it before all else, but for the eighth ask, which may be for what is slower.
    assert len(front) > 2 and front < set(promised[: len(front) + 1])
    assert results.fidelity is not None and results.fidelity.carry
    assert results.fidelity.correlation == pytest.approx(1.0)
    assert results.fidelity.pairs == len([d for d in trained if d in digests]) >= 5
    count = len(looks) + kind.own
    whole = len(told.jobs) - count
    assert (results.fidelity.whole, results.fidelity.short) == (whole, count)
    assert results.fidelity.worth == pytest.approx(whole + count * kind.worth)
    spent = math.ceil(len(looks) * kind.worth / SEEDS)
    assert results.stopped == f"budget: 18 trials, {spent} of them spent on {kind.name}"
    assert len(records.searched) == 18 - spent
    assert f"runs: {whole} whole, {kind.said}" in front_table(results)


@one_kind
def test_the_whole_ladder_is_looked_at_first(spec: StudySpec, kind: Kind, tmp_path: Path) -> None:
    """Also what of it need not be trained: it is far enough apart to say whether looks rank."""
    spec = replace(spec, space=replace(spec.space, ladder=("uniform", "apex.O3")))
    ladder = list(space_of(spec).ladder())[1:]
    told = Told(most=2 * SEEDS + kind.own + len(ladder) + 1)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, tmp_path / "j", executor=told)
    looks = [job.policy.digest for job in told.looks]
    assert looks[: len(ladder)] == ladder and len(looks) > len(ladder) > 3


@one_kind
def test_with_one_seed_while_searching_a_look_is_its_share_of_a_trial(
    spec: StudySpec, kind: Kind, tmp_path: Path
) -> None:
    spec = replace(spec, study=replace(spec.study, search_seeds=1))
    told = Told()
    results = run_study(spec, tmp_path / "j", executor=told)
    spent = math.ceil(len(told.looks) * kind.worth)
    assert spent >= 4
    assert results.stopped == f"budget: 18 trials, {spent} of them spent on {kind.name}"
    assert {trial.seeds for trial in results.front} == {(0, 1)}
    assert {trial.seeds for trial in results.trials} == {(0,), (0, 1)}


@one_kind
def test_looks_that_do_not_rank_are_given_up(spec: StudySpec, tmp_path: Path) -> None:
    told = Told(rank=False)
    results = run_study(spec, tmp_path / "j", executor=told)
    looked = results.fidelity
    assert looked is not None and looked.pairs >= 5 and looked.correlation < 0.9
    assert not looked.carry and "only whole runs count" in front_table(results)
    begun = [job.policy.digest for job in told.jobs if not is_look(job)]
    assert not set(begun[-6:]) <= front_of(spec, told)


@pytest.mark.parametrize("kind", KINDS[1:], ids=["narrow runs"], indirect=True)
def test_a_study_that_was_stopped_goes_on_with_the_same_policies(
    spec: StudySpec, finished: tuple[Told, Path], tmp_path: Path
) -> None:
    """Stopped in float32, and once more among the runs that follow the looks."""
    for most in (3, 19):
        with pytest.raises(KeyboardInterrupt):
            run_study(spec, tmp_path / "j", executor=Told(most=most))
    run_study(spec, tmp_path / "j", executor=Told())
    whole, stopped = records_at(finished[1]), records_at(tmp_path / "j")
    assert list(stopped.low_fidelity) == list(whole.low_fidelity)
    assert [asked.told for asked in stopped.low_fidelity.values()] == [
        asked.told for asked in whole.low_fidelity.values()
    ]
    assert [asked.digest for asked in stopped.searched] == [a.digest for a in whole.searched]
    assert stopped.runs == whole.runs


@one_kind
def test_on_a_cluster_looks_are_told_as_they_end(spec: StudySpec, tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, path, executor=Told(most=10, in_order=False))
    results = run_study(spec, path, executor=Told(in_order=False))
    records = records_at(path)
    looks = list(records.low_fidelity.values())
    assert [look.place for look in looks] == list(range(RUNS_PER_PLACE * PLACES))
    assert all(look.told <= look.place for look in looks)
    own = objective_of(spec).float32.digest
    ended = [
        key.digest for key in records.runs if (key.until or key.width < 1) and key.digest != own
    ]
    assert sorted(ended) == sorted(look.digest for look in looks)
    assert ended != [look.digest for look in looks]
    assert results.fidelity is not None and results.fidelity.carry


def test_what_is_gone_on_with_is_what_it_were_in_one_piece(tmp_path: Path) -> None:
    changes = (
        ("steps = 24\ntail_steps = 8", "steps = 80\ntail_steps = 16"),
        ("trials = 18", "trials = 8"),
    )
    spec = load_spec(write_study(tmp_path, *CHANGES, *changes))
    path = tmp_path / "j"
    results = run_study(spec, path, processes=0)
    assert results.fidelity is not None and results.fidelity.learns
    assert results.fidelity.resumed >= 2
    records, objective = records_at(path), objective_of(spec)
    texts = {asked.digest: asked.text for asked in records.searched}
    resumed = 0
    for key, run in records.runs.items():
        if key.until or key.digest not in texts or not isinstance(run, Measurement):
            continue
        looked_at = RunKey(key.digest, key.seed, until=20) in records.runs
        assert run.resumed_at == (20 if looked_at else 0)
        resumed += looked_at
        if looked_at:
            policy = from_json(texts[key.digest], "stored")
            assert run == objective.measure(policy, key.seed)
    assert resumed == results.fidelity.resumed
    whole = sum(key.until is None for key in records.runs)
    looks = len(records.runs) - whole
    assert results.fidelity.worth == pytest.approx(whole + (looks - resumed) / 4)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j", "j.front", "tiny.toml"]


def test_a_net_that_learns_too_late_is_not_looked_at(tmp_path: Path) -> None:
    spec = load_spec(
        write_study(
            tmp_path,
            *CHANGES,
            ("learning_rate = 0.1", "learning_rate = 0.01"),
            ("trials = 18", "trials = 1"),
        )
    )
    results = run_study(spec, tmp_path / "j", processes=0)
    assert not records_at(tmp_path / "j").low_fidelity
    assert "short runs: none, for float32 has learned too little" in front_table(results)


@one_kind
def test_the_sampler_is_shown_every_look_that_a_proposal_is_told(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose, shown = Proposer.propose, list[int]()

    def seen(self: Proposer, place: int, views: Any, *more: Any, **named: Any) -> Any:
        if named.get("whole"):
            shown.append(len(views))
        return propose(self, place, views, *more, **named)

    monkeypatch.setattr(Proposer, "propose", seen)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, tmp_path / "j", executor=Told(most=14))
    told = [look.told for look in records_at(tmp_path / "j").low_fidelity.values()]
    assert shown[: len(told)] == told and max(told) > 3
