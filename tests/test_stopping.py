"""When a search asks for no more, to the second, the trial and the gap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policysearch.search.goals import Goal
from policysearch.study.aim import Aim
from policysearch.study.opening import load_results
from policysearch.study.optuna_view import TrialView
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.stopping import Limits
from policysearch.study.study import run_study
from tests.studies import replaced_training, write_study

LADDER = frozenset(("a", "b", "c"))


@pytest.fixture
def spec(tmp_path: Path) -> StudySpec:
    return load_spec(write_study(tmp_path, ('sampler = "random"', 'sampler = "gain"')))


def limits(spec: StudySpec, clock: Any = lambda: 0.0, **study: Any) -> Limits:
    spec = replace(spec, study=replace(spec.study, **study))
    plan = spec.study.plan(spec.objectives.names, spec.task.steps, spec.wanted)
    return Limits(plan.budget, LADDER, clock)


ANY = Aim(Goal("gap", gap=1e-3, time=1.0 / 1.5), "any gap<=0.001", enough=True)
BEST = replace(ANY, enough=False)


def known(count: int, *of_ladder: str) -> set[str]:
    return {*of_ladder, *(f"other {i}" for i in range(count - len(of_ladder)))}


def test_hours_count_from_the_beginning(spec: StudySpec) -> None:
    moments = iter((1000.0, 1000.0 + 1799.9, 1000.0 + 1800.0))
    found = limits(spec, lambda: next(moments), hours=0.5)
    assert [found.reached(known(1), (), BEST) for _ in range(2)] == ["", "time: 0.5 hours"]


@pytest.mark.parametrize(
    ("gap", "speedup", "met"),
    [
        (1e-3, 1.5, True),
        (0.9e-3, 1.6, True),
        (-1.0, 9.0, True),
        (1.1e-3, 1.6, False),
        (1e-3, 1.4, False),
    ],
)
def test_a_goal_is_met_by_one_policy_that_has_both(
    gap: float, speedup: float, met: bool, spec: StudySpec
) -> None:
    told = [
        TrialView({}, 1.0, 9.0, 1.0),
        TrialView({}, gap, speedup, 1.0),
        TrialView({}, 0.0, 1.0, 1.0),
    ]
    found, reason = limits(spec), "goal met: any gap<=0.001"
    assert found.reached(known(3), told, ANY) == (reason if met else "")
    assert found.reached(known(3), told, BEST) == ""


@pytest.mark.parametrize(
    ("trials", "asked", "looks", "reason"),
    [
        (6, known(5, *LADDER), 0, ""),
        (6, known(6, *LADDER), 0, "budget: 6 trials"),
        (6, known(7, *LADDER), 0, "budget: 6 trials"),
        (6, known(4, *LADDER), 1, ""),
        (6, known(4, *LADDER), 2, "budget: 6 trials, 2 of them spent on short runs"),
        # what of the ladder is still missing is tried beyond the trials, where they hold it
        (6, known(6, "a"), 0, ""),
        (3, known(3, "a"), 0, ""),
        (2, known(2, "a"), 0, "budget: 2 trials"),
        (2, known(1, "a"), 0, ""),
    ],
)
def test_trials_are_spent_by_policies_and_looks(
    trials: int, asked: set[str], looks: int, reason: str, spec: StudySpec
) -> None:
    assert limits(spec, trials=trials, short_runs=True).reached(asked, (), BEST, looks) == reason


def test_a_search_that_goes_on_has_not_ended(spec: StudySpec, tmp_path: Path) -> None:
    path, calls = tmp_path / "j", 0

    def stop(done: float, _: Any) -> None:
        nonlocal calls
        calls += done > spec.study.trials
        if calls == 2:
            raise KeyboardInterrupt

    with replaced_training():
        assert run_study(spec, path, processes=0).stopped == "budget: 6 trials"
        kept = path.read_bytes()
        assert run_study(spec, path, processes=0).stopped == "budget: 6 trials"
        assert path.read_bytes() == kept
        with pytest.raises(KeyboardInterrupt):
            run_study(spec.with_trials(9), path, processes=0, progress=stop)
        assert load_results(spec, path).stopped == ""
        for _ in range(2):
            assert run_study(spec, path, processes=0).stopped == "budget: 6 trials"
    assert load_results(spec, path).stopped == "budget: 6 trials"
