"""Learning-rate schedules against torch's schedulers, number by number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task
from policysearch.values import InputError, from_plain, to_plain

TASK = Task(steps=60, tail_steps=5, learning_rate=0.0123)
KINDS = {
    "constant": Schedule(),
    "step": Schedule("step", period_steps=13, factor=0.3),
    "cosine": Schedule("cosine"),
    "cosine to a tenth": Schedule("cosine", final_factor=0.1),
    "cosine there and back": Schedule("cosine", period_steps=20),
}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*optimizer.step.*:UserWarning")
@pytest.mark.parametrize(
    "warmup", [{}, {"warmup_steps": 7}, {"warmup_steps": 9, "warmup_factor": 0.01}]
)
@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_torchs(kind: str, warmup: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_training import torch_schedule

    task = replace(TASK, schedule=replace(KINDS[kind], **warmup))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=task.learning_rate)
    schedule, theirs = torch_schedule(optimizer, task), []
    for _ in range(task.steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    ours = [task.rate_at(step) for step in range(task.steps)]
    assert len(set(ours)) > 2 or (kind == "constant" and not warmup)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-16)
    for our, their in zip(ours, theirs, strict=True):
        assert np.float32(our) == np.float32(their)


def test_a_schedule_is_a_table_of_the_task() -> None:
    task = replace(TASK, schedule=Schedule("cosine", warmup_steps=5))
    assert from_plain(Task, to_plain(task), "task") == task
    assert task.fingerprint != TASK.fingerprint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "linear"}, "schedule kind: 'linear'; expected one of constant, step, cosine"),
        ({"kind": "step"}, "schedule period_steps: 0 with kind 'step'"),
        ({"warmup_steps": -1}, "schedule warmup_steps"),
        ({"warmup_factor": 0.0}, "schedule warmup_factor"),
        ({"final_factor": 2.0}, "schedule final_factor"),
    ],
)
def test_what_no_schedule_is_is_an_input_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule(**given)
