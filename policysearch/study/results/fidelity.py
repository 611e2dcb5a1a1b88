"""The low-fidelity evaluations of a study: what they showed, and whether they rank as whole runs.

A journal of before calls them looks, and still does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from policysearch.cost.price import PolicyCost
from policysearch.objective.score import DIVERGED_GAP, Measurement, Outcome, gap, gap_curve
from policysearch.search.fidelity import (
    Fidelity,
    beyond_prices,
    rank_correlation,
    ranks_alike,
    short_share,
)
from policysearch.search.hypervolume import Array
from policysearch.search.objectives import counted
from policysearch.study.journal.records import Asked, Records, RunKey

Prices = Callable[[Asked], PolicyCost | None]
"""The modeled cost of a policy on the study's device; None where it cannot be priced."""


@dataclass(frozen=True)
class LowFidelityRun:
    """A policy that was evaluated at low fidelity: its gap in nats there, and halfway `before`.

    The latter is None where a run takes all steps. `whole` is that of its whole run with the same
    seed, None where that has not ended. `costs` are its modeled time and memory over float32's, the
    same for all where that is no objective.
    """

    asked: Asked
    costs: tuple[float, float]
    before: float | None
    short: float
    whole: float | None


class LowFidelityRuns:
    """The evaluations of low fidelity that have ended, read from the records of a study."""

    def __init__(
        self,
        records: Records,
        fidelity: Fidelity,
        objectives: Collection[str],
        float32: str,
        prices: Prices,
    ) -> None:
        """`float32` is the digest of that policy; the `objectives` say which costs count."""
        self.fidelity = fidelity
        self._records, self._prices, self._names = records, prices, objectives
        self._base = RunKey(float32, fidelity.seed)
        self.reference = replace(self._base, width=fidelity.width)
        """The run of float32 that gaps of low fidelity are measured from."""

    def key(self, asked: Asked) -> RunKey:
        """Return the run that evaluates a policy at low fidelity."""
        how = self.fidelity
        return RunKey(asked.trained, how.seed, until=how.stop, width=how.width)

    @property
    def learns(self) -> bool:
        """Whether float32 has learned enough by the end of such a run."""
        base, reference = (self._records.runs.get(key) for key in (self._base, self.reference))
        if not isinstance(base, Measurement) or base.first_loss is None or base.tail_loss is None:
            return False
        curve = reference.curve if isinstance(reference, Measurement) else ()
        short = dict(curve).get(self.fidelity.until, math.inf)
        return short_share(base.first_loss, short, base.tail_loss) < 1.0

    def ended(self, in_order: bool = False) -> list[Asked]:
        """Return the policies that were evaluated, as they ended or, up to the first gap, asked."""
        requests = list(self._records.low_fidelity.values())
        places = {key: place for place, key in enumerate(self._records.runs)}
        if in_order:
            return list(takewhile(lambda asked: self.key(asked) in places, requests))
        ended = [asked for asked in requests if self.key(asked) in places]
        return sorted(ended, key=lambda asked: places[self.key(asked)])

    def of(
        self, policies: Sequence[Asked], whole: Collection[str] | None = None
    ) -> list[LowFidelityRun]:
        """Return the runs of policies, paired with whole runs, of `whole` alone if given."""
        return [self._run(asked, whole is None or asked.digest in whole) for asked in policies]

    def _run(self, asked: Asked, paired: bool) -> LowFidelityRun:
        fidelity = self.fidelity
        gaps = self._gaps(self._records.runs[self.key(asked)])
        run = self._records.runs.get(RunKey(asked.trained, fidelity.seed)) if paired else None
        whole = None if run is None else self._whole(run)
        halfway = gaps.get(math.ceil(fidelity.until / 2), DIVERGED_GAP)
        before = halfway if fidelity.stop else None
        short = gaps.get(fidelity.until, DIVERGED_GAP)
        return LowFidelityRun(asked, self._costs(asked), before, short, whole)

    def _costs(self, asked: Asked) -> tuple[float, float]:
        cost = self._prices(asked)
        time, memory = (1.0 / cost.speedup, cost.memory_ratio) if cost else (math.inf, 2.0)
        return counted(time, memory, self._names)

    def _gaps(self, run: Outcome) -> Mapping[int, float]:
        base = self._records.runs.get(self.reference)
        if not isinstance(run, Measurement) or not isinstance(base, Measurement):
            return {}
        return {taken: gap for taken, gap, _ in gap_curve(run, base)}

    def _whole(self, run: Outcome) -> float:
        base = self._records.runs.get(self._base)
        if not isinstance(run, Measurement) or not isinstance(base, Measurement):
            return DIVERGED_GAP
        return gap(run, base)


def trusted(runs: Sequence[LowFidelityRun]) -> bool:
    """Whether runs rank policies as they did halfway and as whole runs do, if that is known."""
    stopped = [(run.before, run) for run in runs if run.before is not None]
    halves = [(gap, run.short) for gap, run in stopped]
    steady = ranks_alike(halves, _prices([run for _, run in stopped]))
    return steady and ranks_alike(*paired(runs))


def paired(runs: Sequence[LowFidelityRun]) -> tuple[list[tuple[float, float]], Array]:
    """Return the gaps at both fidelities of the policies that have both; prices [n, 2]."""
    both = [run for run in runs if run.whole is not None]
    pairs = [(run.short, run.whole) for run in both if run.whole is not None]
    return pairs, _prices(both)


def _prices(runs: Sequence[LowFidelityRun]) -> Array:
    return np.array([run.costs for run in runs]).reshape(len(runs), 2)


@dataclass(frozen=True)
class FidelitySummary:
    """The runs of a study that evaluates policies at low fidelity first.

    `whole` of them over all steps and `short` over `until`, of a net of `width` of the widths;
    `resumed` of these were gone on with; together they are worth `worth` whole runs, by their steps
    and widths. `correlation`: how short runs rank the `pairs` policies that have both, `beyond`
    the same given their prices, NaN where that is not known; `carry`: whether they are trusted.
    `learns`: whether float32 learns by their end.
    """

    whole: int
    short: int
    until: int
    resumed: int
    worth: float
    pairs: int
    correlation: float
    beyond: float
    carry: bool
    learns: bool
    width: float = 1.0
    name: str = "short runs"


def fidelity_summary(
    records: Records,
    fidelity: Fidelity,
    objectives: Collection[str],
    float32: str,
    prices: Prices,
) -> FidelitySummary:
    """Return what a study's runs amount to; `float32` is the digest of that policy."""
    evaluations = LowFidelityRuns(records, fidelity, objectives, float32, prices)
    runs = {key: run for key, run in records.runs.items() if key.steps is None}
    measured = {key: run for key, run in runs.items() if isinstance(run, Measurement)}
    steps = [_steps(key, run, fidelity.steps) for key, run in measured.items()]
    ended = evaluations.of(evaluations.ended())
    pairs, costs = paired(ended)
    return FidelitySummary(
        whole=sum(_is_whole(key) for key in runs),
        short=sum(not _is_whole(key) for key in runs),
        until=fidelity.until,
        resumed=sum(run.resumed_at > 0 for run in measured.values()),
        worth=sum(steps) / fidelity.steps,
        pairs=len(pairs),
        correlation=rank_correlation(pairs),
        beyond=beyond_prices(pairs, costs),
        carry=trusted(ended),
        learns=evaluations.learns,
        width=fidelity.width,
        name=fidelity.name,
    )


def _is_whole(key: RunKey) -> bool:
    return key.until is None and key.width == 1.0


def _steps(key: RunKey, run: Measurement, steps: int) -> float:
    """Return the steps that a run took itself, narrower ones as the share of one they cost."""
    end = (key.until or steps) if run.diverged_at is None else run.diverged_at + 1
    return (end - run.resumed_at) * key.width
