"""What a sampler is shown: the trials so far as an Optuna study in memory, made anew per policy.

So what it proposes depends on what is recorded and on the study file, never on how often a run
was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import optuna
from optuna.trial import TrialState

from policysearch.cost.price import PolicyCost
from policysearch.objective.score import DIVERGED_GAP
from policysearch.search.hypervolume import Point, non_dominated
from policysearch.search.objectives import DIRECTIONS, ObjectiveName
from policysearch.space.decided.base import Params
from policysearch.space.space import Space
from policysearch.study.journal.records import Asked
from policysearch.study.optuna_samplers import distributions, system_attrs

GAP_UNIT = 1e-3
"""The sampler sees asinh(gap / GAP_UNIT): linear to about a thousandth of a nat, then a logarithm.

It rises with the gap, so the front is the same; a model of the gaps then has decades to work on.
"""

WINDOW = 100
"""Of earlier trials the sampler sees the front alone, and one to two windows of later ones.

Optuna's samplers take time that grows with every trial they see.
"""


@dataclass(frozen=True)
class TrialView:
    """One trial as the sampler sees it; a gap of DIVERGED_GAP means that nothing was learned.

    `accuracy` and `metric` are those on validation data, NaN where there are none.
    """

    params: Params
    loss_gap: float
    speedup: float
    memory_ratio: float
    accuracy: float = math.nan
    metric: float = math.nan

    def values(self, names: Sequence[ObjectiveName]) -> list[float]:
        """Return the objectives called `names`, the gap on the sampler's scale."""
        axes: dict[ObjectiveName, float] = {
            "loss_gap": math.asinh(max(0.0, self.loss_gap) / GAP_UNIT),
            "speedup": self.speedup,
            "memory_ratio": self.memory_ratio,
        }
        return [axes[name] for name in names]


def gap_of(value: float) -> float:
    """Return the loss gap in nats that the sampler sees as `value`."""
    return math.sinh(value) * GAP_UNIT


def trial_view(
    params: Params,
    loss_gap: float | None,
    cost: PolicyCost | None,
    accuracy: float | None = None,
    metric: float | None = None,
) -> TrialView:
    """Return a trial of this gap and modeled cost; what has none of one is as bad as can be."""
    speedup, memory_ratio = (cost.speedup, cost.memory_ratio) if cost else (0.0, 2.0)
    gap = DIVERGED_GAP if loss_gap is None else loss_gap
    measured = (math.nan if value is None else value for value in (accuracy, metric))
    return TrialView(params, gap, speedup, memory_ratio, *measured)


class History:
    """The trials so far, and the few of them that a sampler is shown."""

    def __init__(self, names: Sequence[ObjectiveName]) -> None:
        self._names = names
        self._trials: list[TrialView] = []
        self._fronts: dict[int, list[int]] = {0: []}

    def append(self, trial: TrialView) -> None:
        """Add the next trial."""
        self._trials.append(trial)

    def first(self, count: int) -> list[TrialView]:
        """Return the first `count` trials."""
        return self._trials[:count]

    def shown(self, count: int) -> list[TrialView]:
        """Return what is shown of the first `count` trials."""
        start = max(0, count // WINDOW - 1) * WINDOW
        return [self._trials[i] for i in self._front(start)] + self._trials[start:count]

    def _front(self, count: int) -> list[int]:
        """Return the places of the front of the first `count` trials, whole windows of them."""
        if count not in self._fronts:
            for end in range(WINDOW, count + 1, WINDOW):
                places = [*self._fronts[end - WINDOW], *range(end - WINDOW, end)]
                front = non_dominated([self._point(self._trials[place]) for place in places])
                self._fronts[end] = [places[i] for i in front]
        return self._fronts[count]

    def _point(self, trial: TrialView) -> Point:
        signs = (1.0 if DIRECTIONS[name] == "minimize" else -1.0 for name in self._names)
        values = trial.values(self._names)
        return tuple(sign * value for sign, value in zip(signs, values, strict=True))


def sampler_view(
    trials: Sequence[TrialView],
    space: Space,
    names: Sequence[ObjectiveName],
    sampler: str,
    pending: Sequence[Params] = (),
) -> optuna.Study:
    """Return a study in memory of `trials`, for the sampler called `sampler` to learn from.

    Those of `pending` are under way there.
    """
    study = optuna.create_study(directions=[DIRECTIONS[name] for name in names])
    described = distributions(space)
    for index, trial in enumerate(trials):
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.COMPLETE,
                params=dict(trial.params),
                distributions=described,
                values=trial.values(names),
                system_attrs=system_attrs(sampler, index),
                constraints={"diverged": float(trial.loss_gap >= DIVERGED_GAP)},
            )
        )
    for params in pending:
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING, params=dict(params), distributions=described
            )
        )
    return study


def params_of(asked: Asked, space: Space) -> Params:
    """Return the decisions of the space that are the policy, or the nearest ones."""
    params, choices = asked.params, space.choices()
    if params.keys() == choices.keys() and all(params[name] in choices[name] for name in choices):
        return params
    return space.project(asked.policy)
