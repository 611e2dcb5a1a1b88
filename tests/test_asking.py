"""What is asked depends on what was told, in the recorded order, and no worker waits for it."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_info, threadpool_limits

from policysearch.objective.objective import Objective
from policysearch.objective.score import Outcome
from policysearch.search import searcher
from policysearch.search.posterior import Sensitivity
from policysearch.space.options import Decisions
from policysearch.study.coordinator import Coordinator
from policysearch.study.gain_sampler import GainSampler
from policysearch.study.journal.records import Asked, Records
from policysearch.study.journal.storage import read_checked
from policysearch.study.opening import load_results
from policysearch.study.optuna_view import TrialView
from policysearch.study.proposer import Proposer
from policysearch.study.results.results import Results
from policysearch.study.session import Session
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.study.study import run_study
from policysearch.study.workers.executors import Job
from policysearch.values import InputError
from tests.studies import BARE_SAMPLERS, Untrained, measured, replaced_training, write_study


class Drawn(Untrained):
    """Runs `slots` jobs at once, whose ends come in an order drawn at random; nothing trains."""

    def __init__(self, slots: int, in_order: bool, seed: int = 0) -> None:
        self.slots, self.in_order, self._rng = slots, in_order, random.Random(seed)
        self.most_running = 0
        self.waited: list[int] = []
        """How many jobs were under way each time there was a free slot and no job for it."""

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        taken, running, source = itertools.count(), list[tuple[int, Job]](), iter(jobs)
        while True:
            while len(running) < self.slots and (job := next(source, None)) is not None:
                running.append((next(taken), job))
            if len(running) < self.slots:
                self.waited.append(len(running))
            if not running:
                return
            self.most_running = max(self.most_running, len(running))
            index, job = running.pop(self._rng.randrange(len(running)))
            yield index, measured(job.policy, job.seed)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    spec = load_spec(write_study(tmp_path_factory.mktemp("study")))
    space = replace(spec.space, ladder=("uniform", "apex.O3"))
    return replace(spec, study=replace(spec.study, trials=18, workers=4), space=space)


def asked_in(path: Path) -> list[Asked]:
    records = Records(read_checked(path).lines)
    return sorted(records.searched, key=lambda asked: asked.place)


def coordinator_of(spec: StudySpec, path: Path) -> Coordinator:
    objective = objective_of(spec)
    return Coordinator(Session(spec, objective, Records(read_checked(path).lines)), False)


REPLAYED = (0, 3, 7, 8, 11, 14, 16, 17)
"""Of 18 places where a policy is asked for: in the ladder, at its end, and in the search."""


@pytest.fixture(scope="module")
def drawn(
    spec: StudySpec, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[StudySpec, Path]]:
    """Run the study by a sampler, once, results in any order; return it and its journal."""
    folder = tmp_path_factory.mktemp("drawn")

    @functools.cache
    def run(sampler: str) -> tuple[StudySpec, Path]:
        by = replace(spec, study=replace(spec.study, sampler=sampler))
        run_study(by, folder / sampler, executor=Drawn(7, in_order=False))
        return by, folder / sampler

    return run


@pytest.mark.parametrize("sampler", BARE_SAMPLERS)
def test_a_journal_replayed_asks_for_the_same_policies(
    sampler: str, drawn: Callable[[str], tuple[StudySpec, Path]]
) -> None:
    spec, path = drawn(sampler)
    asked, coordinator = asked_in(path), coordinator_of(spec, path)
    assert [each.place for each in asked] == list(range(18))
    assert [each.place for each in asked] != sorted(range(18), key=lambda k: asked[k].number)
    assert 0 < max(each.told for each in asked) < 18
    for place in REPLAYED:
        again = coordinator.proposed(asked[:place], asked[place].told)
        assert again is not None and again[0].digest == asked[place].digest


def test_told_later_the_same_journal_asks_for_others(
    drawn: Callable[[str], tuple[StudySpec, Path]],
) -> None:
    """Else the test above would pass with a search that listens to nobody."""
    spec, path = drawn("gain")
    asked, coordinator = asked_in(path), coordinator_of(spec, path)
    others = [coordinator.proposed(asked[:place], 1) for place in range(12, 18)]
    assert [found[0].digest for found in others if found] != [a.digest for a in asked[12:]]


def test_with_many_under_way_one_fit_serves_many_asks(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[int] = []
    spec = replace(spec, study=replace(spec.study, sampler="gain", trials=56))
    path = tmp_path / "drawn.journal"

    def noted(decisions: Decisions, rows: NDArray[np.int64], *others: Any) -> Sensitivity:
        fits.append(len(rows))
        return Sensitivity(decisions, rows, *others)

    with monkeypatch.context() as patch:
        patch.setattr(searcher, "Sensitivity", noted)
        run_study(spec, path, executor=Drawn(64, in_order=False))
    asked = asked_in(path)
    told = [each.told for each in asked]
    assert told == sorted(told)
    assert fits == sorted(set(fits)) and len(fits) < len(asked) / 4
    # The more is known, and the more are under way, the more are heard together.
    steps = [after - before for before, after in itertools.pairwise(sorted(set(told)))]
    assert 1 in steps and steps[-1] > 1
    coordinator = coordinator_of(spec, path)
    for place in (33, 54, 55, 44):
        again = coordinator.proposed(asked[:place], told[place])
        assert again is not None and again[0].digest == asked[place].digest


def test_in_order_no_result_depends_on_which_run_ends_first(
    spec: StudySpec, tmp_path: Path
) -> None:
    spec = replace(spec, study=replace(spec.study, sampler="gain", trials=13))
    with replaced_training():
        alone = run_study(spec, tmp_path / "alone.journal", processes=0)
    for slots in (3, 30):
        executor = Drawn(slots, in_order=True, seed=slots)
        assert run_study(spec, tmp_path / f"{slots}.journal", executor=executor) == alone
        # Four policies of two seeds each, and float32 jittered beside them.
        assert executor.most_running == min(slots, 4 * 2 + 2)


def test_no_worker_waits_while_a_policy_can_be_asked(spec: StudySpec, tmp_path: Path) -> None:
    executor = Drawn(9, in_order=False)
    run_study(spec, tmp_path / "a.journal", executor=executor)
    assert executor.most_running == 9
    # Nothing was left from an earlier run; then only once all was asked for.
    assert executor.waited == [0, *range(8, -1, -1)]


@pytest.mark.parametrize("sampler", BARE_SAMPLERS)
def test_a_study_stopped_while_results_come_in_any_order_loses_none(
    sampler: str, spec: StudySpec, tmp_path: Path
) -> None:
    spec, path = replace(spec, study=replace(spec.study, sampler=sampler)), tmp_path / "a.journal"

    def stop(done: float, results: Callable[[], Results]) -> None:
        if len(results().trials) >= 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(spec, path, executor=Drawn(7, in_order=False), progress=stop)
    before = Records(read_checked(path).lines)
    assert len(before.searched) >= 5 and before.outstanding
    with replaced_training() as trained:
        run_study(spec, path, processes=0)
    assert {(k.digest, k.seed, k.jitter) for k in before.runs}.isdisjoint(trained)
    asked = asked_in(path)
    # What was under way is still there, and what comes next is asked for with all of it in view.
    assert before.outstanding.keys() <= {each.digest for each in asked}
    coordinator = coordinator_of(spec, path)
    for place in REPLAYED[4::2]:  # after the stop
        again = coordinator.proposed(asked[:place], asked[place].told)
        assert again is not None and again[0].digest == asked[place].digest


STOPS: dict[str, dict[str, Any]] = {
    "budget: 15 trials": {},
    "time: 0.5 hours": {"hours": 0.5},
    "goal met: any gap<=0.01 speedup>=0.9 over=float32 left<=0": {
        "goal_gap": 0.01,
        "goal_speedup": 0.9,
    },
    "settled: by price alone nothing else can be better": {"least_gain": 0.05},
    "the space has no other policy": {"trials": 500},
}


@pytest.mark.parametrize(("reason", "in_order"), [*zip(STOPS, itertools.cycle([True, False]))])
def test_a_search_ends_with_its_reason_and_goes_on_without_it(
    reason: str, in_order: bool, spec: StudySpec, tmp_path: Path
) -> None:
    small = replace(spec.space, ops=(), loss_scales=("none",), ladder=())
    study = replace(spec.study, sampler="gain", trials=15)
    limited = replace(spec, space=small, study=replace(study, **STOPS[reason]))
    path = tmp_path / "a.journal"
    seconds = itertools.count(0.0, 200.0)
    results = run_study(limited, path, executor=Drawn(3, in_order), clock=lambda: next(seconds))
    assert results.stopped == load_results(limited, path).stopped == reason
    count = len(results.trials)
    assert (count == 15) == (reason == "budget: 15 trials")
    free = replace(spec, space=small, study=study)
    if count < 15 and "no other" not in reason:
        again = run_study(free, path, executor=Drawn(3, in_order))
        assert again.stopped == "budget: 15 trials" and again.trials[:count] == results.trials


def test_half_a_goal_is_none(spec: StudySpec) -> None:
    with pytest.raises(InputError, match="goal_gap and goal_speedup: one of them"):
        replace(spec.study, goal_gap=0.1)


def test_asks_take_one_thread_for_threads_change_bits(
    spec: StudySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(spec, study=replace(spec.study, sampler="gain", trials=10))
    counts = set[int]()
    following = GainSampler._told

    def noted(self: GainSampler, *given: Any) -> tuple[searcher.Searcher, float]:
        every = threadpool_info()
        counts.update(row["num_threads"] for row in every if row["user_api"] == "blas")
        return following(self, *given)

    monkeypatch.setattr(GainSampler, "_told", noted)
    with threadpool_limits(2):
        run_study(spec, tmp_path / "a.journal", executor=Drawn(7, in_order=False))
    assert counts == {1}


def test_a_policy_that_is_known_but_not_shown_is_not_proposed_again(spec: StudySpec) -> None:
    """Of many trials a sampler is shown the latest, and the front of the others."""
    spec = replace(spec, study=replace(spec.study, sampler="gain"))
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack, spec.cost.batch_size)
    space = space_of(spec, objective.model)
    proposer = Proposer(
        spec.study.plan(spec.objectives.names, spec.task.steps, spec.wanted), objective, space
    )
    known = set(proposer.ladder)
    shown = [
        TrialView(space.project(policy), 1e-3, 1.1, 0.9) for policy, _ in proposer.ladder.values()
    ]
    found = []
    for _ in range(2):
        proposed = proposer.propose(100, shown, [], known)
        assert proposed is not None and proposed[1] < math.inf
        found.append(proposed[0].digest)
        known.add(found[-1])
    assert len(set(found)) == 2


def test_the_gap_expected_of_a_policy_is_recorded_before_it_is_trained(tmp_path: Path) -> None:
    """Of what the package's own sampler asks for; nothing is expected of what is named."""
    spec = load_spec(write_study(tmp_path, ('sampler = "random"', 'sampler = "gain"')))
    path = tmp_path / "x.journal"
    with replaced_training():
        run_study(spec, path, processes=0)
    found = load_results(spec, path)
    named = [trial for trial in found.trials if trial.expected is None]
    asked = [trial for trial in found.trials if trial.expected is not None]
    assert asked and all(trial.presets for trial in named)
    for trial in asked:
        middle, low, high = trial.expected or ()
        assert 0.0 <= low <= middle <= high and high > low
    text = path.read_text(encoding="utf-8")
    assert text.count('"expected"') >= len(asked)
