"""Which of the policies of a study are within the limits of its goal, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypeVar

from policysearch.cost.devices import DEVICES
from policysearch.cost.price import MODEL_RESOLUTION, Speedup
from policysearch.search.goals import SLACK
from policysearch.study.journal.trials import Trial


class Goal(Protocol):
    """What is wanted of a policy, and its limits; `GoalSection` says what they mean."""

    @property
    def want(self) -> str: ...
    @property
    def gap(self) -> float | None: ...
    @property
    def accuracy(self) -> float | None: ...
    @property
    def metric(self) -> str: ...
    @property
    def metric_bounds(self) -> tuple[float, float]: ...
    @property
    def speedup(self) -> float | None: ...
    @property
    def over(self) -> str: ...
    @property
    def memory(self) -> float | None: ...
    @property
    def fits(self) -> str: ...


class Lost(Protocol):
    """How much worse a policy trains than what is run."""

    @property
    def worse(self) -> bool: ...


Row = tuple[Trial, Speedup, Lost]
Given = TypeVar("Given", bound=Row)

SIZES: Mapping[str, Callable[[Row], float]] = MappingProxyType(
    {
        "smallest": lambda row: row[0].cost.memory_ratio,
        "closest": lambda row: abs(row[0].loss_gap),
        "any": lambda row: row[0].number,
    }
)
"""What is to be small of a policy; the fastest is judged with what is surely faster."""


def limits_loss(goal: Goal | None) -> bool:
    """Whether a goal itself says how much loss it allows, whatever matters otherwise."""
    if goal is None:
        return False
    measured = goal.gap is not None or goal.accuracy is not None or bool(goal.metric)
    return measured or goal.want == "closest"


def accepts(goal: Goal | None, lost: Lost) -> bool:
    """Whether a loss is one that the goal allows: by its own limit, or none that matters."""
    return limits_loss(goal) or not lost.worse


def within(goal: Goal, row: Row) -> bool:
    """Whether a policy is within all limits of the goal."""
    trial, speed, lost = row
    cost, accuracy, metric = trial.cost, trial.validation_accuracy, trial.metric
    low, high = goal.metric_bounds
    held = DEVICES[goal.fits.partition("@")[0]].memory_bytes if goal.fits else cost.peak_bytes
    faster = cost.speedup if goal.over == "float32" else speed.value
    return (
        accepts(goal, lost)
        and (goal.gap is None or trial.loss_gap <= goal.gap)
        and (goal.accuracy is None or (accuracy is not None and accuracy >= goal.accuracy))
        and (not goal.metric or (metric is not None and low <= metric <= high))
        and faster >= (goal.speedup or 0.0) * (1.0 - SLACK)
        and (goal.memory is None or cost.memory_ratio <= goal.memory * (1.0 + SLACK))
        and cost.peak_bytes <= held
    )


def best_for(goal: Goal, rows: Sequence[Given], own: Given | None) -> Given | None:
    """Return what the goal wants of rows within it, or `own`, what is run, where none is better.

    None where nothing is within it, `own` neither.
    """
    size, least = SIZES[goal.want], 1.0
    rows = [row for row in rows if within(goal, row)]
    if own is None or not within(goal, own):
        return min(rows, key=size, default=None)
    if goal.want == "smallest":
        least += MODEL_RESOLUTION["memory_ratio"]
    better = [row for row in rows if goal.want != "any" and size(row) * least < size(own)]
    return min(better, key=size, default=own)
