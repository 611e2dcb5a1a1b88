"""What a search added to the policies it began with, told of those that hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from policysearch.cost.price import PolicyCost
from policysearch.search.acquisition import gain, regret, yardstick
from policysearch.search.fidelity import rank_correlation
from policysearch.search.hypervolume import Array
from policysearch.search.objectives import counted
from policysearch.study.results.results import Results


@dataclass(frozen=True)
class GainOverStart:
    """The dominated `volume` of all policies, and the `gain`: what of it the ladder alone lacks.

    Measured as `acquisition.yardstick` says, from the prices of the whole ladder; what of it was
    not trained adds nothing. `slower` and `slowest`: how much slower, mean and worst over
    `acquisition.BUDGETS`, the ladder's fastest policy within a gap is than the fastest found.
    Policies that fail when trained longer, or show an early sign of it, count on neither side:
    `left_out` says how many.
    """

    volume: float
    gain: float
    slower: float
    slowest: float
    left_out: int = 0


def gain_over_start(results: Results) -> GainOverStart | None:
    """Return what the search added; None where float32 is all that it began with, or all fails."""
    begun = [trial for trial in results.trials if trial.start]
    if all("float32" in t.presets for t in begun) or all("float32" not in t.presets for t in begun):
        return None
    trials = [trial for trial in results.trials if not results.doubt(trial)]
    left_out = len(results.trials) - len(trials)
    if not trials:
        return None
    start = [place for place, trial in enumerate(trials) if trial.start]
    gaps = np.array([trial.loss_gap for trial in trials])
    costs = np.array([_costs(trial.cost, results) for trial in trials])
    measure = yardstick(ladder_costs(results))
    # The ladder against everything trained: what a user of presets alone would have given away.
    slower = regret(gaps, costs, start)[:, 0]
    volume = measure.volume(gaps, costs)
    added = max(0.0, gain(measure, gaps, costs, start))  # a difference of volumes, rounded
    return GainOverStart(volume, added, float(slower.mean()), float(slower.max()), left_out)


def ladder_costs(results: Results) -> Array:
    """Return (time, memory) over float32's of the ladder but for float32, trained or not: [n, 2].

    An axis that is no objective is the same for all.
    """
    trained = [t.cost for t in results.trials if t.start and "float32" not in t.presets]
    left = [cost for _, cost in results.left]
    return np.array([_costs(cost, results) for cost in (*trained, *left)])


def _costs(cost: PolicyCost, results: Results) -> Array:
    """Return (time, memory) over float32's, as far as they count in this study: [2]."""
    return np.array(counted(1.0 / cost.speedup, cost.memory_ratio, results.spec.objectives.names))


@dataclass(frozen=True)
class ExpectedGap:
    """What the search expected of a gap, the middle and an interval for four in five; and the gap.

    In nats, each of them as much as noise leaves to be told at least.
    """

    trial: int
    gap: float
    middle: float
    low: float
    high: float

    @property
    def held(self) -> bool:
        """Whether the gap lies in the interval."""
        return self.low <= self.gap <= self.high


def expected_gaps(results: Results) -> list[ExpectedGap]:
    """Return one for each trial of which something was expected, and that came to its end."""
    least = results.resolution_gap or 1e-12
    return [
        ExpectedGap(t.number, *(max(least, value) for value in (t.loss_gap, *t.expected)))
        for t in results.trials
        if t.expected and not t.diverged
    ]


EXPECTED_SHARE = 0.8
"""Of the gaps lie in the ranges that the search gives them, where it is right about itself."""
FEWEST_EXPECTED = 5
"""Of four, two or fewer lie there once in six by chance alone: that says nothing."""


def as_expected(results: Results) -> list[str]:
    """Return a line on how expected gaps compare with those measured, if they are not few."""
    found = expected_gaps(results)
    if len(found) < FEWEST_EXPECTED:
        return []
    held, wanted = sum(each.held for each in found), round(EXPECTED_SHARE * len(found))
    said = (
        f"the search foresaw {held} of {len(found)} gaps, within the ranges it gave them before "
        f"training (about {wanted} should lie there)"
    )
    ranks = rank_correlation([(each.middle, each.gap) for each in found])
    return [said + ("" if math.isnan(ranks) else f"; rank correlation {ranks:.2f}")]
