"""Tasks: what they refuse, and what their fingerprint sees."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from policysearch.data.datasets import load_dataset
from policysearch.train.tasks import Task
from policysearch.values import InputError, from_plain, to_plain

TASK = Task(model="mlp", widths=(16,), data="digits", steps=30, tail_steps=10)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "vgg"},
        {"data": "mnist"},
        {"loss": "hinge"},
        {"optimizer": "sophia"},
        {"learning_rate": math.nan},
        {"steps": 0},
        {"tail_steps": 31},
        {"batch_size": 0},
        {"momentum": 1.0},
        {"widths": (0,)},
        {"activation": "swish"},
    ],
)
def test_bad_tasks_are_input_errors(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        replace(TASK, **changes).build_model(load_dataset("digits"))


def test_task_survives_plain_data_and_its_fingerprint_sees_every_result() -> None:
    assert from_plain(Task, to_plain(TASK), "task") == TASK
    assert replace(TASK, data_folder="/elsewhere").fingerprint == TASK.fingerprint
    changed = [{"steps": 31}, {"learning_rate": 0.2}, {"activation": "tanh"}, {"widths": (17,)}]
    prints = {replace(TASK, **change).fingerprint for change in changed}  # type: ignore[arg-type]
    assert len(prints | {TASK.fingerprint}) == 5
