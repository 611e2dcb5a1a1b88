"""Policies of several phases: priced over the run, and moved with it to another length."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Phase, Policy, stretched, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.training import train

TASK = Task(model="mlp", widths=(16,), data="digits", batch_size=32, steps=10, tail_steps=2)


@pytest.fixture(scope="module")
def objective() -> Objective:
    return Objective(TASK, "H100-SXM5", "torch.compile", 65536)


def phased(objective: Objective, *changes: tuple[int, str]) -> Policy:
    names = objective.model.layer_names
    phases = (Phase(step, tuple((n, uniform_layer(to)) for n in names)) for step, to in changes)
    return replace(preset("float8", names), loss_scale=LossScale(), phases=tuple(phases))


def test_a_run_takes_the_time_of_its_phases_and_the_memory_of_the_largest(
    objective: Objective,
) -> None:
    policy = phased(objective, (4, "bfloat16"), (7, "float32"), (10, "float16"))
    parts = [objective.price(policy.at_step(step)) for step in (0, 4, 7)]
    whole = objective.price(policy)
    seconds = [part.step_seconds for part in parts]
    assert len(set(seconds)) == 3
    mean = (4 * seconds[0] + 3 * seconds[1] + 3 * seconds[2]) / 10
    assert whole.step_seconds == pytest.approx(mean, rel=1e-12)
    assert whole.speedup == pytest.approx(whole.float32_step_seconds / mean, rel=1e-12)
    assert whole.speedup_low < whole.speedup < whole.speedup_high
    assert whole.peak_bytes == max(part.peak_bytes for part in parts)
    assert whole.memory_ratio == max(part.memory_ratio for part in parts)
    weights = [4 * seconds[0], 3 * seconds[1], 3 * seconds[2]]
    each = [dict(part.layer_shares) for part in parts]
    for layer, share in whole.layer_shares:
        summed = math.fsum(
            w * known.get(layer, 0.0) for w, known in zip(weights, each, strict=True)
        )
        assert share == pytest.approx(summed / (10 * mean))
    assert {name for name, _ in whole.format_shares} == {
        name for part in parts for name, _ in part.format_shares
    }


def test_a_policy_of_one_phase_costs_its_step(objective: Objective) -> None:
    plain = phased(objective)
    assert objective.price(phased(objective, (10, "float32"))) == objective.price(plain)


def test_phases_and_schedules_are_shares_of_a_longer_run(objective: Objective) -> None:
    policy = replace(
        phased(objective, (4, "bfloat16"), (5, "float32")),
        loss_scale=LossScale("schedule", schedule=((0, 2.0), (5, 8.0))),
    )
    long = stretched(policy, 10.0)
    assert [phase.first_step for phase in long.phases] == [40, 50]
    assert long.loss_scale.schedule == ((0, 2.0), (50, 8.0))
    assert [stretched(long, 0.1).digest, long.layers] == [policy.digest, policy.layers]
    short = stretched(policy, 0.1)  # both fall on step 1, as nothing begins before it
    assert [phase.first_step for phase in short.phases] == [1]
    assert short.phases[0].layers == policy.phases[-1].layers
    dynamic = replace(policy, phases=(), loss_scale=LossScale("dynamic", growth_interval=7))
    assert stretched(dynamic, 10.0) == dynamic


def test_a_longer_measurement_is_of_the_stretched_policy(objective: Objective) -> None:
    policy = phased(objective, (5, "float32"))
    found = objective.measure(policy, 0, steps=20)
    task = TASK.with_steps(20)
    data, net = objective.dataset, objective.model
    runs = [
        train(task, each, 0, dataset=data, model=net) for each in (stretched(policy, 2.0), policy)
    ]
    assert found.tail_loss == runs[0].tail_loss != runs[1].tail_loss
    unchanged = objective.measure(replace(policy, phases=()), 0, steps=20)
    assert unchanged.curve[1] == found.curve[1] and unchanged.curve[3] != found.curve[3]
