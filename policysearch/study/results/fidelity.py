"""The looks that a study took: what they showed, and whether they rank as whole runs do."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from policysearch.cost.price import PolicyCost
from policysearch.objective.score import (
    DIVERGED_GAP,
    Measurement,
    Outcome,
    gap,
    gap_curve,
)
from policysearch.study.gain_sampler import counted
from policysearch.search.hypervolume import Array
from policysearch.search.fidelity import (SHORT, beyond_prices, carry, rank_correlation, short_share)
from policysearch.study.journal.records import (Asked, Records)
from policysearch.study.journal.records import RunKey
from policysearch.study.specification import StudySpec

Prices = Callable[[Asked], PolicyCost | None]
"""The modeled cost of a policy on the study's device; None where it cannot be priced."""


@dataclass(frozen=True)
class Look:
    """A policy that was looked at: its gap in nats at the end of the look, and halfway `before`.

    The latter is None where a look takes all steps. `whole` is that of its whole run with the same
    seed, None where that has not ended. `costs` are its modeled time and memory over float32's, the
    same for all where that is no objective.
    """

    asked: Asked
    costs: tuple[float, float]
    before: float | None
    short: float
    whole: float | None


class Looks:
    """The looks that have ended, read from the records of a study."""

    def __init__(self, records: Records, spec: StudySpec, float32: str, prices: Prices) -> None:
        """`float32` is the digest of that policy."""
        self._prices, self._names = prices, spec.objectives.names
        self._records, self._seed = records, spec.study.seeds[0]
        self._steps, self._base = spec.task.steps, RunKey(float32, self._seed)
        narrow = spec.study.narrow
        self._until = math.ceil(SHORT * self._steps) if narrow is None else None
        self._width, self.worth = narrow or 1.0, narrow or SHORT
        self.beside = replace(self._base, width=self._width)
        """The run of float32 that looks are compared with; `worth`: of a look, in whole runs."""

    @property
    def until(self) -> int:
        """The steps that a look takes."""
        return self._until or self._steps

    def key(self, asked: Asked) -> RunKey:
        """Return the run that is the look at a policy."""
        return RunKey(asked.trained, self._seed, until=self._until, width=self._width)

    @property
    def learns(self) -> bool:
        """Whether float32 has learned enough by the end of a look."""
        base, beside = (self._records.runs.get(key) for key in (self._base, self.beside))
        if not isinstance(base, Measurement) or base.first_loss is None or base.tail_loss is None:
            return False
        curve = beside.curve if isinstance(beside, Measurement) else ()
        short = dict(curve).get(self.until, math.inf)
        return short_share(base.first_loss, short, base.tail_loss) < 1.0

    def ended(self, in_order: bool = False) -> list[Asked]:
        """Return the policies that were looked at, as they ended or, up to the first gap, asked."""
        looks = list(self._records.looks.values())
        runs = {key: place for place, key in enumerate(self._records.runs)}
        if in_order:
            return list(takewhile(lambda asked: self.key(asked) in runs, looks))
        done = [asked for asked in looks if self.key(asked) in runs]
        return sorted(done, key=lambda asked: runs[self.key(asked)])

    def of(self, asked: Sequence[Asked], whole: Collection[str] | None = None) -> list[Look]:
        """Return the looks at policies that were, beside whole runs, of `whole` alone if given."""
        found = []
        for each in asked:
            at = self._gaps(self._records.runs[self.key(each)])
            key = RunKey(each.trained, self._seed)
            run = self._records.runs.get(key) if whole is None or each.digest in whole else None
            known = None if run is None else self._whole(run)
            halfway = at.get(math.ceil(self.until / 2), DIVERGED_GAP)
            before = halfway if self._until else None
            found.append(
                Look(each, self._costs(each), before, at.get(self.until, DIVERGED_GAP), known)
            )
        return found

    def _costs(self, asked: Asked) -> tuple[float, float]:
        cost = self._prices(asked)
        time, memory = (1.0 / cost.speedup, cost.memory_ratio) if cost else (math.inf, 2.0)
        return counted(time, memory, self._names)

    def _gaps(self, run: Outcome) -> Mapping[int, float]:
        base = self._records.runs.get(self.beside)
        if not isinstance(run, Measurement) or not isinstance(base, Measurement):
            return {}
        return {taken: gap for taken, gap, _ in gap_curve(run, base)}

    def _whole(self, run: Outcome) -> float:
        base = self._records.runs.get(self._base)
        if not isinstance(run, Measurement) or not isinstance(base, Measurement):
            return DIVERGED_GAP
        return gap(run, base)


def trusted(looks: Sequence[Look]) -> bool:
    """Whether looks rank policies as they did halfway and as whole runs do, if that is known."""
    stopped = [(look.before, look) for look in looks if look.before is not None]
    before = [(gap, look.short) for gap, look in stopped]
    return carry(before, _prices([look for _, look in stopped])) and carry(*compared(looks))


def compared(looks: Sequence[Look]) -> tuple[list[tuple[float, float]], Array]:
    """Return the gaps of looks and whole runs of the policies that have both; prices [n, 2]."""
    both = [look for look in looks if look.whole is not None]
    pairs = [(look.short, look.whole) for look in both if look.whole is not None]
    return pairs, _prices(both)


def _prices(looks: Sequence[Look]) -> Array:
    return np.array([look.costs for look in looks]).reshape(len(looks), 2)


@dataclass(frozen=True)
class Looked:
    """The runs of a study that looks at policies.

    `whole` of them over all steps and `short` over `until`, of a net of `width` of the widths;
    `resumed` of these were gone on with; together they are worth `worth` whole runs, by their steps
    and widths. `correlation`: how looks rank the `pairs` policies that have both, `beyond` the same
    given their prices, NaN where that is not known; `carry`: whether they are trusted. `learns`:
    whether float32 learns by their end.
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


def looked(records: Records, spec: StudySpec, float32: str, prices: Prices) -> Looked | None:
    """Return what the study's runs amount to; None where it looks at no policies."""
    if not spec.study.looks:
        return None
    looks = Looks(records, spec, float32, prices)
    runs = {key: run for key, run in records.runs.items() if key.steps is None}
    measured = {key: run for key, run in runs.items() if isinstance(run, Measurement)}
    taken = [_taken(key, run, spec.task.steps) for key, run in measured.items()]
    found = looks.of(looks.ended())
    pairs, costs = compared(found)
    return Looked(
        whole=sum(_is_whole(key) for key in runs),
        short=sum(not _is_whole(key) for key in runs),
        until=looks.until,
        resumed=sum(run.resumed_at > 0 for run in measured.values()),
        worth=sum(taken) / spec.task.steps,
        pairs=len(pairs),
        correlation=rank_correlation(pairs),
        beyond=beyond_prices(pairs, costs),
        carry=trusted(found),
        learns=looks.learns,
        width=spec.study.narrow or 1.0,
    )


def _is_whole(key: RunKey) -> bool:
    return key.until is None and key.width == 1.0


def _taken(key: RunKey, run: Measurement, steps: int) -> float:
    end = (key.until or steps) if run.diverged_at is None else run.diverged_at + 1
    return (end - run.resumed_at) * key.width
