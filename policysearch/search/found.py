"""What a search added to the policies it began with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policysearch.search.gain import gain, regret, yardstick
from policysearch.search.gain_sampler import UNCOUNTED
from policysearch.search.hypervolume import Array
from policysearch.search.results import Results
from policysearch.search.trials import Trial


@dataclass(frozen=True)
class Found:
    """The dominated `volume` of all policies, and the `gain`: what of it the ladder alone lacks.

    Measured as `gain.yardstick` says, from the ladder's own prices. `slower` and `slowest`: how
    much slower, mean and worst over `gain.BUDGETS`, the ladder's fastest policy within a gap is
    than the fastest found.
    """

    volume: float
    gain: float
    slower: float
    slowest: float


def found(results: Results) -> Found | None:
    """Return what the search added; None where float32 is all that it began with."""
    trials = results.trials
    start = [place for place, trial in enumerate(trials) if trial.start]
    priced = [place for place in start if "float32" not in trials[place].presets]
    if not priced or len(priced) == len(start):
        return None
    gaps = np.array([trial.loss_gap for trial in trials])
    costs = np.array([_costs(trial, results) for trial in trials])
    measure = yardstick(costs[priced])
    slower = regret(gaps, costs, start)[:, 0]
    volume = measure.volume(gaps, costs)
    return Found(
        volume, gain(measure, gaps, costs, start), float(slower.mean()), float(slower.max())
    )


def _costs(trial: Trial, results: Results) -> Array:
    names = results.spec.objectives.names
    time = 1.0 / trial.cost.speedup if "speedup" in names else UNCOUNTED
    return np.array([time, trial.cost.memory_ratio if "memory_ratio" in names else UNCOUNTED])
