"""Price tables against exact prices, one policy at a time."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.cost.tables import CHECKED, PriceTable
from policysearch.objective.objective import Objective
from policysearch.search.price_table import format_table, formats_of
from policysearch.search.space import Space, make_space
from policysearch.search.space_section import SpaceSection
from policysearch.train.tasks import Task
from policysearch.values import InputError

FORMATS = ("float32", "bfloat16", "float8_e4m3fn")
DEEP = Task(model="mlp", data="digits", widths=(512,) * 11, batch_size=4096)
RESIDUAL = Task(model="transformer", data="digits", batch_size=1024)


def made(task: Task, stack: str) -> tuple[Objective, Space, PriceTable]:
    objective = Objective(task, "H100-SXM5", stack)
    space = make_space(SpaceSection(formats=FORMATS), objective.model)
    return objective, space, format_table(objective, space, {}, np.random.default_rng(0))


def exact(objective: Objective, space: Space, row: object) -> tuple[float, int]:
    price = objective.step_price(space.policy(formats_of(space, tuple(row))))  # type: ignore[arg-type]
    return price.time.step_seconds, price.memory.peak_bytes


@pytest.mark.parametrize(
    ("task", "stack", "time_error", "memory_error"),
    [
        (DEEP, "mindspore.graph", 0.02, 0.01),
        (DEEP, "torch.eager", 0.02, 0.01),
        (RESIDUAL, "torch.compile", 0.05, 0.15),
    ],
)
def test_policies_cost_what_they_do_exactly(
    task: Task, stack: str, time_error: float, memory_error: float
) -> None:
    objective, space, table = made(task, stack)
    drawn = np.random.default_rng(7).integers(0, len(FORMATS), (25, len(space.groups)))
    seconds, peaks = table.priced(drawn)
    found = np.array([exact(objective, space, row) for row in drawn])
    assert np.ptp(found[:, 0]) > 0.1 * found[:, 0].mean()  # they do differ
    np.testing.assert_allclose(seconds, found[:, 0], rtol=time_error)
    np.testing.assert_allclose(peaks, found[:, 1], rtol=memory_error)
    assert table.time_error <= time_error and table.memory_error <= memory_error


def test_the_errors_told_are_those_of_policies_drawn_beside() -> None:
    objective, space, table = made(RESIDUAL, "torch.compile")
    assert table.time_error > 0.0  # casts that several layers share are no terms of pairs
    drawn = np.random.default_rng(3).integers(0, len(FORMATS), (CHECKED, len(space.groups)))
    found = np.array([exact(objective, space, row)[0] for row in drawn])
    own = np.abs(table.step_seconds(drawn) / found - 1).max()
    assert own <= 3 * table.time_error


def test_fewer_prices_than_assignments_are_needed_and_told() -> None:
    _, space, table = made(DEEP, "torch.compile")
    assert len(space.groups) == 12
    assert CHECKED < table.prices <= 60


@pytest.mark.parametrize("row", [[0] * 11, [0] * 13, [3] + [0] * 11, [-1] + [0] * 11])
def test_what_is_no_assignment_is_refused(row: list[int]) -> None:
    _, _, table = made(DEEP, "torch.compile")
    with pytest.raises(InputError, match=r"choices: shape \(1, \d+\); expected \[n, 12\]"):
        table.priced(np.array([row]))


def test_no_assignments_have_no_prices() -> None:
    _, _, table = made(DEEP, "torch.compile")
    seconds, peaks = table.priced(np.empty((0, 12), int))
    assert seconds.shape == peaks.shape == (0,)
