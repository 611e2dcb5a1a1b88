"""The goal of a study in the units of its search, as far as they are known by now."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from policysearch.cost.devices import DEVICES
from policysearch.objective.objective import Objective
from policysearch.search.goals import Axis, Goal, separating
from policysearch.space.space import Space
from policysearch.study.optuna_view import TrialView
from policysearch.study.sections import GoalSection, Want
from policysearch.study.specification import StudySpec
from policysearch.values import InputError

AXES: Mapping[Want, Axis] = MappingProxyType(
    {"fastest": "time", "smallest": "memory", "closest": "gap", "any": "gap"}
)
"""What is to be small; of any policy within the limits its gap, for prices are known."""


@dataclass(frozen=True)
class Aim:
    """A goal in the units of a search, and beside it the least validation accuracy, and metric.

    `words` says it, `metric` are the least and the largest one. The search ends once no more than
    `left` can be left. With `enough` any policy that meets it will do. If it is not `asked` for,
    policies are asked for the front.
    """

    goal: Goal
    words: str
    left: float = 0.0
    accuracy: float | None = None
    metric: tuple[float, float] = (-math.inf, math.inf)
    enough: bool = False
    asked: bool = True

    def meets(self, trial: TrialView) -> bool:
        """Whether the policy is within all limits."""
        goal, time = self.goal, 1.0 / trial.speedup if trial.speedup > 0.0 else math.inf
        if not self._measures(trial):
            return False
        return goal.within(trial.loss_gap, time, trial.memory_ratio)

    @property
    def measured(self) -> bool:
        """Whether what is known of a policy only once it is trained, beside its gap, is limited."""
        return self.accuracy is not None or any(map(math.isfinite, self.metric))

    def _measures(self, trial: TrialView) -> bool:
        """Whether the policy is within the limits of accuracy and metric."""
        least, most = self.metric
        exact = self.accuracy is None or trial.accuracy >= self.accuracy  # NaN is none
        return exact and (least <= trial.metric <= most or self.metric == (-math.inf, math.inf))

    def ended_by(self, trial: TrialView) -> bool:
        """Whether the search is at its end with such a policy."""
        return self.enough and self.meets(trial)

    def of_search(self, trials: Sequence[TrialView]) -> Goal:
        """Return the goal in what a search knows of policies: what is measured limits the gap.

        Told trials say up to which gap accuracy and metric hold.
        """
        if not self.measured:
            return self.goal
        holds = [self._measures(trial) for trial in trials]
        limit = separating([trial.loss_gap for trial in trials], holds)
        return replace(self.goal, gap=min(self.goal.gap, limit))


def aim_of(
    section: GoalSection,
    asked: bool,
    matters: float,
    baseline_time: float,
    float32_bytes: int,
) -> Aim:
    """Return the goal in the units of a search.

    `matters` is the gap in nats from which on a difference counts, `baseline_time` the step time of
    the baseline over float32's, `float32_bytes` the peak of float32's step.
    """
    gap = section.gap
    if gap is None:
        measured = section.accuracy is not None or section.metric
        gap = math.inf if section.want == "closest" or measured else matters
    base = 1.0 if section.over == "float32" else baseline_time
    # A speedup of nothing limits nothing.
    time = base / section.speedup if section.speedup else math.inf
    memory = math.inf if section.memory is None else section.memory
    if section.fits:
        held = DEVICES[section.fits.partition("@")[0]].memory_bytes
        memory = min(memory, held / float32_bytes)
    goal = Goal(AXES[section.want], gap, time, memory)
    limits = section.accuracy, section.metric_bounds
    return Aim(goal, section.words, section.left, *limits, section.want == "any", asked)


class Aims:
    """The aim of an open study: the gap that matters follows float32's runs."""

    def __init__(
        self,
        spec: StudySpec,
        objective: Objective,
        space: Space,
        matters: Callable[[], float],
    ) -> None:
        """`matters` returns the least gap that matters, in nats, by what is known now."""
        self._spec, self._objective, self._space = spec, objective, space
        self._matters = matters

    @property
    def now(self) -> Aim:
        """The aim by what is recorded."""
        spec = self._spec
        asked = spec.goal is not None or spec.study.goal_gap is not None
        return aim_of(spec.wanted, asked, self._matters(), *self._baseline_price)

    @cached_property
    def _baseline_price(self) -> tuple[float, int]:
        """The step time of the baseline over float32's, and the peak of float32's step in bytes.

        1 where there is no baseline, or no price of it.
        """
        peak, name = self._objective.float32_price.memory.peak_bytes, self._spec.study.baseline
        if name is None:
            return 1.0, peak
        try:
            return 1.0 / self._objective.price(self._space.preset(name)).speedup, peak
        except InputError:
            return 1.0, peak
