"""Gradient errors along float32's run: against trainers, and what they say of decisions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search.gradient_errors import gradient_errors, moments, seen_under
from benchmarks.search.probes import probe_cost, probe_steps, probed_policies, probes
from policysearch.objective.objective import Objective
from policysearch.policy.policy import uniform_layer
from policysearch.search.posterior import Sensitivity
from policysearch.space.encoding import Encoding
from policysearch.space.options import Decisions, Option
from policysearch.study.specification import load_spec, objective_of, space_of
from policysearch.train.training import train

STUDY = Path(__file__).parents[1] / "benchmarks" / "search" / "tanh-mlp-masters.toml"


@pytest.fixture(scope="module")
def objective() -> Objective:
    spec = load_spec(STUDY)
    task = replace(spec.task, steps=8, tail_steps=2)
    return objective_of(replace(spec, task=task))


def test_gradients_of_a_moment_are_those_that_training_takes(objective: Objective) -> None:
    """Plain gradient descent moves each parameter by the rate times the gradient seen there."""
    task, net, data = objective.task, objective.model, objective.dataset
    met = moments(task, 0, [2], dataset=data, model=net)
    ((loss, gradients),) = seen_under(task, objective.float32, 0, met, net)
    before, after = (
        train(replace(task, steps=n, tail_steps=1), objective.float32, 0, dataset=data, model=net)
        for n in (2, 3)
    )
    assert loss == after.losses[2]
    for name, value in met[0].params.items():
        np.testing.assert_array_equal(value, before.params[name])
        moved = before.params[name] - task.learning_rate * gradients[f"grad:{name}"]
        np.testing.assert_allclose(after.params[name], moved, atol=1e-7)


def test_errors_grow_with_the_width_of_rounding(objective: Objective) -> None:
    def in_format(name: str) -> object:
        layers = tuple((n, uniform_layer(name)) for n, _ in objective.float32.layers)
        return replace(objective.float32, layers=layers)

    names = ("float32", "float16", "bfloat16", "float8_e4m3fn")
    found = gradient_errors(
        objective.task,
        [in_format(name) for name in names],  # type: ignore[misc]
        0,
        [0, 4],
        dataset=objective.dataset,
        model=objective.model,
    )
    assert found[0] == 0.0
    # float16 has 8 times finer steps than bfloat16, and energies go with the square.
    assert 20.0 < found[2] / found[1] < 200.0
    assert found[3] > 50.0 * found[2]


def test_a_decision_is_probed_by_the_policy_that_makes_it_alone(objective: Objective) -> None:
    spec = load_spec(STUDY)
    space = space_of(spec, objective.model)
    effective = Encoding(space)
    policies = probed_policies(space, effective)
    assert set(policies) == set(effective.decisions.counted())
    for policy in policies.values():
        low = [n for n, layer in policy.layers if layer.compute != "float32"]
        assert sum(name.startswith("fc") for name in low) == 1
    logs = probes(objective, space, effective, 0)
    assert np.isfinite(logs).all()
    coarse = [
        effective.decisions.places[place][option].operand_epsilon >= 2.0**-5
        for place, option in effective.decisions.counted()
    ]
    assert logs[coarse].min() > logs[~np.array(coarse)].max()
    assert probe_cost(space, effective, 160) == 20 * len(probe_steps(160)) / 160


def test_hints_say_which_decision_costs_more_until_trainings_say_otherwise() -> None:
    options = (Option("float32"), Option("float8", 2.0**-3))
    decisions = Decisions((options,) * 4)
    rows = np.eye(4, dtype=np.int64)
    hints = np.array([[3.0], [-1.0], [-1.0], [-1.0]])

    def means(told: np.ndarray, gaps: np.ndarray) -> np.ndarray:
        belief = Sensitivity(decisions, told, gaps, 1e-4, 0.05, hints)
        return np.asarray(sum(each.weight * each.mean for each in belief.predict(rows)))

    before = means(rows[:0], np.empty(0))
    assert before[0] > before[1] + 0.3
    after = means(rows[[0, 1]], np.array([1e-3, 1e-2]))
    assert after[0] < after[1] - 1.0
