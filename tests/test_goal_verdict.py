"""A study that asks for a goal is answered for it, and not for another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policysearch.cost.price import PolicyCost
from policysearch.study.results.results import Results
from policysearch.study.sections import GoalSection
from policysearch.study.specification import StudySpec
from tests.test_verdict import BASELINE, float32, near, results_of, spec

__all__ = ["float32", "spec"]  # fixtures

ROWS = [
    (2.6, 0.5, near(2e-3)),  # 2: the fastest at no loss that matters
    (1.5, 0.3, near(3e-3)),  # 3: the smallest of those, slower than the baseline
    (4.0, 0.2, near(0.3)),  # 4: faster and smaller, and it loses much
    (2.4, 0.55, near(0.0)),  # 5: closer than 2, by nothing that matters, and slower
]


@pytest.fixture
def found(spec: StudySpec, float32: PolicyCost) -> Results:
    return results_of(spec, float32, ROWS)


def asked(found: Results, **goal: Any) -> Results:
    objectives = replace(found.spec.objectives, names=("loss_gap", "speedup", "memory_ratio"))
    study = replace(found.spec.study, least_gain=None)
    wanted = GoalSection(**goal)
    return replace(found, spec=replace(found.spec, study=study, goal=wanted, objectives=objectives))


@pytest.mark.parametrize(
    ("goal", "taken"),
    [
        ({"want": "fastest"}, 2),
        ({"want": "smallest"}, 3),
        ({"want": "smallest", "gap": 0.5}, 4),
        ({"want": "smallest", "speedup": 1.1}, 2),
        ({"want": "smallest", "speedup": 1.1, "over": "float32"}, 3),
        ({"want": "closest", "speedup": 1.1}, 2),
        ({"want": "any", "speedup": 1.1}, 2),
        ({"want": "fastest", "gap": 0.5}, 4),
        ({"want": "fastest", "gap": 0.5, "memory": 0.5}, 4),
        ({"want": "fastest", "memory": 0.5}, 2),
        ({"want": "smallest", "accuracy": 0.8}, 4),
    ],
)
def test_what_the_goal_wants_is_taken(found: Results, goal: dict[str, Any], taken: int) -> None:
    verdict = asked(found, **goal).verdict
    assert (verdict.kind, verdict.trial) == ("take", taken), verdict.text
    assert verdict.text.startswith(f"take trial {taken}, bfloat16")
    assert f"{verdict.speedup:.2f}x your baseline {BASELINE}" in verdict.text
    if goal["want"] != "fastest":
        assert f"for the goal ({GoalSection(**goal).words})" in verdict.text
    assert ("no worse" in verdict.text) == (taken != 4)
    assert ("loss +3.0e-01" in verdict.text) == (taken == 4)


@pytest.mark.parametrize(
    "goal",
    [
        {"want": "smallest", "memory": 0.1},
        {"want": "smallest", "accuracy": 0.95},
        {"want": "closest", "speedup": 3.0},
        {"want": "any", "fits": "H100-SXM5", "speedup": 9.0},
    ],
)
def test_where_nothing_meets_the_goal_nothing_is_taken(
    found: Results, goal: dict[str, Any]
) -> None:
    verdict = asked(found, **goal).verdict
    assert (verdict.kind, verdict.trial) == ("keep", 1)
    words = GoalSection(**goal).words
    assert verdict.text == f"keep what you run, {BASELINE}: nothing tried meets the goal ({words})"


def test_what_is_run_is_kept_where_it_meets_the_goal_best(
    spec: StudySpec, float32: PolicyCost
) -> None:
    found = results_of(spec, float32, [(2.6, 0.599, near(2e-3)), (4.0, 0.2, near(0.3))])
    verdict = asked(found, want="smallest").verdict
    assert (verdict.kind, verdict.trial) == ("keep", 1)
    assert "nothing tried is nearer to the goal (smallest)" in verdict.text
    assert asked(found, want="fastest").verdict.trial == 2


def test_what_the_seeds_cannot_judge_is_not_taken(spec: StudySpec, float32: PolicyCost) -> None:
    apart = near(2e-3, spread=0.03)
    found = results_of(spec, float32, [(1.5, 0.3, apart)])
    verdict = asked(found, want="smallest").verdict
    assert (verdict.kind, verdict.trial) == ("undecided", 2)
    assert "too few to judge its loss" in verdict.text
    assert "until then keep what you run" in verdict.text
    judged = results_of(spec, float32, [(1.5, 0.3, apart), (1.8, 0.4, near(2e-3))])
    assert asked(judged, want="smallest").verdict.trial == 3
    limited = asked(found, want="smallest", gap=0.5).verdict
    assert (limited.kind, limited.trial) == ("take", 2)
    assert "too few to judge its loss" in limited.text
