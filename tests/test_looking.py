"""A study that looks at policies first: short runs, what they propose, and what is gone on with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement, Outcome
from policysearch.policy.policy import Policy, from_json
from policysearch.report.table import front_table
from policysearch.search.front import non_dominated
from policysearch.search.jobs import Job
from policysearch.search.looks import LOOK
from policysearch.search.records import Records, RunKey
from policysearch.search.spec import StudySpec, load_spec, objective_of
from policysearch.search.storage import read_checked
from policysearch.search.study import load_results, run_study
from policysearch.search.study_space import space_of
from policysearch.values import InputError
from tests.studies import Untrained, write_study

CHANGES = (
    ('sampler = "random"', 'sampler = "gain"\nshort_runs = true'),
    ("trials = 6", "trials = 18"),
    ("widths = [8]", "widths = [8, 8]"),
    ("steps = 6\ntail_steps = 3", "steps = 24\ntail_steps = 8"),
    ('loss_scales = ["none", "fixed", "dynamic"]\ngrowth_intervals = [10, 100]\n', ""),
)
UNTIL, STEPS, PLACES, SEEDS = 6, 24, 4, 2
LOSSES = {3: 1.5, 6: 1.0, 12: 0.7, STEPS: 0.5}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study"), *CHANGES))


def records_at(path: Path) -> Records:
    return Records(read_checked(path).lines)


def gap_of(policy: Policy) -> float:
    """Return a made-up gap in nats: a sum over layers of what their formats cost."""
    cost = {"float32": 0.0, "bfloat16": 4e-4, "float16": 2e-4, "float8_e4m3fn": 4e-3}
    total = sum(
        cost[layer.compute] * (1 + 0.37 * place) for place, (_, layer) in enumerate(policy.layers)
    )
    return total * (1.0 if policy.master_weights else 2.1) + 1e-6 * len(policy.fp32_ops)


class Told(Untrained):
    """An executor that trains nothing: three runs at once, whose gaps are those of `gap_of`.

    Looks show twice that where they `rank`, and what is largest as least where they do not. The
    run after `most` of them is interrupted. Without `in_order` the latest that began ends first.
    """

    def __init__(self, rank: bool = True, most: float = math.inf, in_order: bool = True) -> None:
        self.rank, self.most, self.in_order = rank, most, in_order
        self.jobs: list[Job] = []

    def __call__(self, objective: Objective) -> Self:
        self.base = objective.float32.digest
        return self

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        under_way: list[tuple[int, Job]] = []
        source, taken = iter(jobs), 0
        while True:
            while len(under_way) < 3 and (job := next(source, None)) is not None:
                under_way.append((taken, job))
                taken += 1
            if not under_way:
                return
            if len(self.jobs) >= self.most:
                raise KeyboardInterrupt
            index, job = under_way.pop(0 if self.in_order else -1)
            self.jobs.append(job)
            yield index, self.measured(job)

    def measured(self, job: Job) -> Measurement:
        size = 0.0 if job.policy.digest == self.base else gap_of(job.policy)
        early = 2.0 * size if self.rank or not size else 0.05 - size
        end = job.until or STEPS
        gaps = {taken: size if taken == STEPS else early for taken in LOSSES}
        curve = tuple((n, loss + gaps[n]) for n, loss in LOSSES.items() if n <= end)
        return Measurement(curve[-1][1], 0.9, None, 0, (), (), curve=curve, first_loss=2.3)


def front_of(spec: StudySpec, told: Told) -> set[str]:
    """Return the digests of the policies on the front of what the looks showed."""
    objective, looks = objective_of(spec), [job for job in told.jobs if job.until]
    costs = [objective.price(job.policy) for job in looks]
    points = [
        (told.measured(job).tail_loss or np.inf, -cost.speedup, cost.memory_ratio)
        for job, cost in zip(looks, costs, strict=True)
    ]
    return {looks[place].policy.digest for place in non_dominated(points)}


@pytest.fixture(scope="module")
def finished(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Path]:
    told, path = Told(), tmp_path_factory.mktemp("finished") / "j"
    run_study(spec, path, executor=told)
    return told, path


def test_what_looks_propose_is_trained_after_the_ladder(
    spec: StudySpec, finished: tuple[Told, Path]
) -> None:
    told, path = finished
    results = load_results(spec, path)
    looks = [job for job in told.jobs if job.until]
    assert {(job.until, job.seed, job.jitter) for job in looks} == {(UNTIL, 0, 0.0)}
    digests = [job.policy.digest for job in looks]
    assert len(set(digests)) == len(digests) == LOOK * PLACES
    first = [bool(job.until) for job in told.jobs]
    assert first == sorted(first[:4]) + [True] * len(looks) + [False] * (
        len(first) - 4 - len(looks)
    )
    records = records_at(path)
    trained = [asked.digest for asked in sorted(records.searched, key=lambda a: a.place)]
    ladder = [asked.digest for asked in records.searched if asked.start]
    assert set(trained[: len(ladder)]) == set(ladder)
    front = front_of(spec, told)
    promised = list(takewhile(lambda digest: digest in digests, trained[len(ladder) :]))
    assert len(promised) > 2 and set(promised) <= front
    assert results.looked is not None and results.looked.carry
    assert results.looked.correlation == pytest.approx(1.0)
    assert results.looked.pairs == len([d for d in trained if d in digests]) >= 5
    whole = len(told.jobs) - len(looks)
    assert (results.looked.whole, results.looked.short) == (whole, len(looks))
    assert results.looked.worth == pytest.approx(whole + len(looks) * UNTIL / STEPS)
    assert results.stopped == "budget: 18 trials, 2 of them spent on short runs"
    assert len(records.searched) == 18 - math.ceil(len(looks) * UNTIL / STEPS / SEEDS)
    assert f"runs: {whole} whole, 16 of 6 steps" in front_table(results)


def test_the_whole_ladder_is_looked_at_first(spec: StudySpec, tmp_path: Path) -> None:
    """Also what of it need not be trained: it is far enough apart to say whether looks rank."""
    spec = replace(spec, space=replace(spec.space, ladder=("uniform", "apex.O3")))
    ladder = list(space_of(spec).ladder())[1:]
    told = Told(most=2 * SEEDS + len(ladder) + 1)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, tmp_path / "j", executor=told)
    looks = [job.policy.digest for job in told.jobs if job.until]
    assert looks[: len(ladder)] == ladder and len(looks) > len(ladder) > 3


def test_with_one_seed_while_searching_a_look_is_a_quarter_of_a_trial(
    spec: StudySpec, tmp_path: Path
) -> None:
    spec = replace(spec, study=replace(spec.study, search_seeds=1))
    results = run_study(spec, tmp_path / "j", executor=Told())
    assert results.stopped == "budget: 18 trials, 4 of them spent on short runs"
    assert {trial.seeds for trial in results.front} == {(0, 1)}
    assert {trial.seeds for trial in results.trials} == {(0,), (0, 1)}


def test_looks_that_do_not_rank_are_given_up(spec: StudySpec, tmp_path: Path) -> None:
    told = Told(rank=False)
    results = run_study(spec, tmp_path / "j", executor=told)
    looked = results.looked
    assert looked is not None and looked.pairs >= 5 and looked.correlation < 0.9
    assert not looked.carry and "only whole runs count" in front_table(results)
    begun = [job.policy.digest for job in told.jobs if not job.until]
    assert not set(begun[-6:]) <= front_of(spec, told)


@pytest.mark.parametrize("most", [3, 9, 22, 30])
def test_a_study_that_was_stopped_goes_on_with_the_same_policies(
    most: int, spec: StudySpec, finished: tuple[Told, Path], tmp_path: Path
) -> None:
    told = Told(most=most)
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, tmp_path / "j", executor=told)
    run_study(spec, tmp_path / "j", executor=Told())
    whole, stopped = records_at(finished[1]), records_at(tmp_path / "j")
    assert list(stopped.looks) == list(whole.looks)
    assert [asked.told for asked in stopped.looks.values()] == [
        asked.told for asked in whole.looks.values()
    ]
    assert [asked.digest for asked in stopped.searched] == [a.digest for a in whole.searched]
    assert stopped.runs == whole.runs


def test_on_a_cluster_looks_are_told_as_they_end(spec: StudySpec, tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(KeyboardInterrupt):
        run_study(spec, path, executor=Told(most=10, in_order=False))
    results = run_study(spec, path, executor=Told(in_order=False))
    records = records_at(path)
    looks = list(records.looks.values())
    assert [look.place for look in looks] == list(range(LOOK * PLACES))
    assert all(look.told <= look.place for look in looks)
    ended = [key.digest for key in records.runs if key.until]
    assert sorted(ended) == sorted(look.digest for look in looks)
    assert ended != [look.digest for look in looks]
    assert results.looked is not None and results.looked.carry


def test_what_is_gone_on_with_is_what_it_were_in_one_piece(tmp_path: Path) -> None:
    changes = (
        ("steps = 24\ntail_steps = 8", "steps = 80\ntail_steps = 16"),
        ("trials = 18", "trials = 8"),
    )
    spec = load_spec(write_study(tmp_path, *CHANGES, *changes))
    path = tmp_path / "j"
    results = run_study(spec, path, processes=0)
    assert results.looked is not None and results.looked.learns
    assert results.looked.resumed >= 2
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
    assert resumed == results.looked.resumed
    whole = sum(key.until is None for key in records.runs)
    looks = len(records.runs) - whole
    assert results.looked.worth == pytest.approx(whole + (looks - resumed) / 4)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j", "tiny.toml"]


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
    assert not records_at(tmp_path / "j").looks
    assert "short runs: none, for float32 has learned too little" in front_table(results)


def test_short_runs_are_for_the_own_sampler(tmp_path: Path) -> None:
    path = write_study(tmp_path, ('sampler = "random"', 'sampler = "tpe"\nshort_runs = true'))
    with pytest.raises(InputError, match="short_runs: true with sampler 'tpe'; expected 'gain'"):
        load_spec(path)
