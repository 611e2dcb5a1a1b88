"""Which policy to train next: the one that promises most new volume, for its price is known.

Of the three axes only the loss gap must be trained for, so the expected gain in dominated volume
is an integral over one Gaussian, and exact.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policysearch.search.acquisition import Yardstick, expected_improvements
from policysearch.search.failures import failures
from policysearch.search.goals import Goal, Left
from policysearch.search.hypervolume import Array, free_areas, front_of, places_of_front
from policysearch.search.left import DRAWS as DRAWN
from policysearch.search.left import left_of_front, left_of_goal
from policysearch.search.posterior import Belief, Sensitivity, fantasies, nats
from policysearch.search.surrogate import OWN_SD
from policysearch.space.options import Decisions, Row

Costs = tuple[float, float]

WORST = 8.0
"""A policy whose gap is above so many times the largest that counts has failed."""

OUTER = 1.01
"""How much further out the corner lies that gains are measured from: at it even the best within a
gap would be worth nothing."""

FINALISTS = 4
"""So many of the most promising candidates are priced exactly, where their costs are rough."""

RUNGS = 2
"""After so many failed, and nothing trained, what of the start is left comes first no more."""

TIED = 1e-7
"""Of policies whose gains differ by a smaller share the first is asked for, whatever the BLAS."""

FEW = 4
"""Up to so many outstanding policies are taken to come out as expected, more of them as drawn."""

DRAWS, LEAST_DRAWS, MOST_DRAWN = 16, 2, 512
"""In so many ways, fewer where that takes more than so many drawn gaps, but never below."""


FOUR_IN_FIVE = 1.2816
"""Four in five values of a Gaussian are within so many standard deviations."""

FRONT_EVERY = 2
"""Each so many-th ask is for the front, the others for the goal."""

BEYOND_EVERY, LITTLE = 8, 0.01
"""Each so many-th ask is for what is gained from the `outer` corner, once the others promise less
than this share of the volume found: what a gap that small allows may be slower than all of it."""


WIDE = (OWN_SD, 2.0)
"""Standard deviations of what each decision has of its own in theta, of what bounds what is left:
the usual one, and one for spaces where formats mean little."""


class Pool(Protocol):
    """The policies that can be asked for."""

    def propose(self, members: Sequence[Row], theta: Array) -> tuple[NDArray[np.int64], Array]:
        """Return candidates [n, places + modifiers] and their costs [n, 2] (time, memory).

        `members` are the front of those asked for so far, `theta` what each decision is thought to
        cost (`Sensitivity.theta`). Equal arguments give equal candidates, in the same order.
        """
        ...

    def exact(self, rows: NDArray[np.int64]) -> Array | None:
        """Return exact costs [n, 2] of proposed rows; None where those proposed are good enough."""
        ...


@dataclass(frozen=True)
class Listed:
    """A pool of all policies, for spaces that can be counted."""

    rows: NDArray[np.int64]
    costs: Array

    def propose(self, members: Sequence[Row], theta: Array) -> tuple[NDArray[np.int64], Array]:
        """Return every policy with its costs."""
        return self.rows, self.costs

    def exact(self, rows: NDArray[np.int64]) -> None:
        """Say that the costs proposed are good enough."""


class Searcher:
    """Asks for policies and is told their gaps, in any order; `asked` policies may be outstanding.

    What it asks for next depends on what it was told and what is outstanding alone. `start` are
    policies to begin with, each with its costs: the first comes first, the others where they
    promise most. `hints` as `Sensitivity` takes them. With more than `few`
    outstanding, asks are averaged over ways in which these may come out. What is gained from an
    `inner` corner counts too: near it gains from `measure` alone would be small, and come last.
    Where neither that nor a `goal` is, a few asks look as far out as an `outer` corner.
    """

    def __init__(
        self,
        decisions: Decisions,
        pool: Pool,
        measure: Yardstick,
        start: Sequence[tuple[Row, Costs]] = (),
        hints: Array | None = None,
        few: float = FEW,
        goal: Goal | None = None,
        inner: Yardstick | None = None,
        outer: Yardstick | None = None,
    ) -> None:
        self._few, self._goal = few, goal
        self._decisions, self._pool, self._measure = decisions, pool, measure
        self._measures = tuple(dict.fromkeys((measure, inner or measure)))
        self._outer = outer
        self._start, self._hints = [(row, costs) for row, costs in start], hints
        self._told: dict[Row, Costs] = {}
        self._gaps: dict[Row, list[float]] = {}
        self._expected: dict[Row, float] = {}
        self._fitted: Sensitivity | None = None
        self._outside: list[tuple[float, float, float]] = []
        self.expected_gain = np.inf
        """Most new volume, of all corners, that the last ask expected; before it infinity."""

    def tell(self, row: Row, costs: Costs, gap: float) -> None:
        """Learn the loss gap of one run of a policy, in nats; runs of one policy are averaged."""
        self._told.setdefault(row, costs)
        self._gaps.setdefault(row, []).append(gap)
        self._fitted = None

    def tell_outside(self, costs: Costs, gap: float) -> None:
        """Count a policy that is none of the pool: others gain by what it does not dominate."""
        self._outside.append((*costs, gap))

    def expect(self, row: Row, costs: Costs) -> None:
        """Count a policy as outstanding: asked for elsewhere, and not told yet."""
        self._told.setdefault(row, costs)

    def copy(self, start: Sequence[tuple[Row, Costs]], goal: Goal | None = None) -> Searcher:
        """Return a searcher with another `start` that was told and asked the same, fitted once.

        And with another `goal`.
        """
        self._fit()
        other = copy.copy(self)
        other._start, other._goal = list(start), goal
        other._told, other._outside = dict(self._told), list(self._outside)
        other._gaps = {row: list(gaps) for row, gaps in self._gaps.items()}
        return other

    def ask(self, count: int = 1, whole_start: bool = False) -> list[tuple[Row, Costs]]:
        """Return up to `count` policies to train, with their costs; fewer where there are no more.

        Each as if all that are outstanding had come out, as expected or drawn; the start before
        all others with `whole_start`.
        """
        proposals: list[tuple[Row, Costs]] = []
        while len(proposals) < count:
            following = self._next_proposal(whole_start)
            if following is None:
                break
            row, costs = following
            self._told[row] = costs
            proposals.append((row, costs))
        return proposals

    def _next_proposal(self, whole_start: bool) -> tuple[Row, Costs] | None:
        start = [each for each in self._start if each[0] not in self._told]
        if start and all(map(self._decisions.exact, self._told)):
            self.expected_gain = np.inf
            return start[0]
        belief = self._belief()
        rows, costs = self._candidates(belief, self._told.keys())
        if not len(rows):
            return None
        self.expected_gain, row, price = self._most(belief, rows, costs)
        if whole_start and start:
            first = len(rows) - len(start)
            _, row, price = self._most(belief, rows[first:], costs[first:])
        return row, price

    def _candidates(
        self, belief: Sensitivity, known: AbstractSet[Row]
    ) -> tuple[NDArray[np.int64], Array]:
        """Return the policies that are none of `known`, with their costs: the start at the end."""
        start = [each for each in self._start if each[0] not in known]
        rows, costs = self._pool.propose(self._members(), belief.theta())
        others = known | {row for row, _ in start}
        fresh = np.array([tuple(row) not in others for row in rows.tolist()], dtype=bool)
        first = self._array([row for row, _ in start])
        prices = np.array([price for _, price in start]).reshape(len(start), 2)
        return np.concatenate([rows[fresh], first]), np.concatenate([costs[fresh], prices])

    def _most(
        self, belief: Sensitivity, rows: NDArray[np.int64], costs: Array
    ) -> tuple[float, Row, Costs]:
        """Return what the policy that promises most promises, the policy, and its costs."""
        gains = self._hopes(belief, rows, costs)
        best_few = np.argsort(-gains, kind="stable")[:FINALISTS]
        exact = self._pool.exact(rows[best_few])
        if exact is not None:
            rows, costs = rows[best_few], exact
            gains = self._hopes(belief, rows, costs)
        best = int(np.flatnonzero(gains >= gains.max() - TIED * abs(gains.max()))[0])
        time, memory = costs[best].tolist()
        return float(gains[best]), tuple(rows[best].tolist()), (time, memory)

    def _hopes(self, belief: Sensitivity, rows: NDArray[np.int64], costs: Array) -> Array:
        """Return the gains of candidates, times how likely they train.

        While all that was trained failed, how likely they train alone, and of all candidates: what
        promises nothing itself may say soonest that others can train.
        """
        failed = self._failures()
        if not failed.any():
            return self._gains(belief, rows, costs)
        told, rng = self._array(list(self._gaps)), np.random.default_rng(len(self._gaps))
        failing = failures(self._decisions, told[failed], told[~failed], DRAWN, rng, True)
        alive = 1.0 - failing.chances(rows)
        if not failed.all():
            gains = self._gains(belief, rows, costs)
            if self._goal is None and not self._counts():
                # The first that counts at all is worth more than how much it brings.
                gains = (gains > 0.0) * self._within_scale(belief, rows)
            return alive * gains
        # A rung whose neighbours failed is tried: formats differ in range as in precision.
        rungs = sum(row not in self._told for row, _ in self._start)
        if rungs and len(failed) < RUNGS:
            alive[: len(rows) - rungs] = 0.0
        return alive

    def _within_scale(self, belief: Sensitivity, rows: NDArray[np.int64]) -> Array:
        """Return how likely the gaps of policies are below the largest that counts: [n]."""
        goal = Goal("gap", gap=self._measure.largest_gap)
        return goal.holds(belief.predict(rows), self._measure.smallest_gap)

    def _counts(self) -> bool:
        """Whether anything that was told, and costs less than the corner, brings volume."""
        costs = np.array([self._told[row] for row in self._gaps])
        return self._measure.volume(self._known_gaps(), costs) > 0.0

    def _failures(self) -> NDArray[np.bool_]:
        """Return which of what was told has failed: [told]."""
        return self._known_gaps() >= WORST * self._measure.largest_gap

    def _belief(self) -> Sensitivity:
        """Return what is believed, once the few that are outstanding came out as expected."""
        belief, outstanding = self._fit(), self._outstanding_rows()
        known, gaps = list(self._gaps), self._known_gaps()
        self._expected = dict(zip(known, gaps.tolist(), strict=True))
        if outstanding:
            expected = _means(belief.predict(self._array(outstanding)), self._measure.smallest_gap)
            self._expected |= zip(outstanding, expected.tolist(), strict=True)
        if 0 < len(outstanding) <= self._few:
            trained = ~self._failures()
            rows = self._array(known)[trained], self._array(outstanding)
            more = np.concatenate([gaps[trained], expected])
            belief = belief.with_more(np.concatenate(rows), more)
        return belief

    def _fit(self) -> Sensitivity:
        """Return what is believed after what was told; fitted once.

        What failed says of the gaps of others nothing: see `failures`.
        """
        if self._fitted is None:
            trained = ~self._failures()
            rows, gaps = self._array(list(self._gaps))[trained], self._known_gaps()[trained]
            scale = self._measure.smallest_gap, self._measure.largest_gap
            self._fitted = Sensitivity(self._decisions, rows, gaps, *scale, self._hints)
        return self._fitted

    def _known_gaps(self) -> Array:
        return np.array([sum(each) / len(each) for each in self._gaps.values()])

    def _outstanding_rows(self) -> list[Row]:
        """Return what was asked for, here or elsewhere, and not told yet."""
        return [row for row in self._told if row not in self._gaps]

    def left(self) -> Left:
        """Return what may be left of the goal, or of the front where there is none.

        By the policies that the pool proposes now, of those told.
        """
        rng = np.random.default_rng(len(self._gaps))
        told, gaps, measure = self._array(list(self._gaps)), self._known_gaps(), self._measure
        failed = self._failures()
        scale = measure.smallest_gap, measure.largest_gap, self._hints, WIDE
        belief = Sensitivity(self._decisions, told[~failed], gaps[~failed], *scale)
        failing = failures(self._decisions, told[failed], told[~failed], DRAWN, rng)
        rows, costs = self._candidates(self._fit(), self._gaps.keys())
        # What failed is not found, not even for a goal that limits no gap.
        found = np.where(failed, np.inf, gaps).tolist()
        known = np.array(self._known(dict(zip(self._gaps, found, strict=True))))
        given = belief, failing, rows, costs, known.reshape(-1, 3), measure, rng
        return left_of_front(*given) if self._goal is None else left_of_goal(self._goal, *given)

    def predicted(self, rows: Sequence[Row]) -> Array:
        """Return what is believed of the gaps of policies in nats: [n, 3].

        The middle, and the ends of an interval that holds four in five.
        """
        beliefs = self._fit().predict(self._array(rows))
        weights = np.array([belief.weight for belief in beliefs])[:, None] / sum(
            belief.weight for belief in beliefs
        )
        means = np.array([belief.mean for belief in beliefs])
        spread = np.array([belief.sd for belief in beliefs]) ** 2 + means**2
        mean = (weights * means).sum(axis=0)
        sd = np.sqrt((weights * spread).sum(axis=0) - mean**2)
        ends = [mean + z * sd for z in (0.0, -FOUR_IN_FIVE, FOUR_IN_FIVE)]
        return np.maximum(nats(np.stack(ends, axis=1), self._measure.smallest_gap), 0.0)

    def members(self) -> list[Row]:
        """Return the front of what was told, and is expected of what is outstanding."""
        self._belief()
        return self._members()

    def _members(self) -> list[Row]:
        rows = list(self._expected)
        costs = np.array([self._told[row] for row in rows]).reshape(len(rows), 2)
        points = self._measure.points(np.array(list(self._expected.values())), costs)
        return [rows[i] for i in places_of_front(points)]

    def _array(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        width = len(self._decisions.places) + len(self._decisions.modifiers)
        return np.array(rows, dtype=np.int64).reshape(len(rows), width)

    def _gains(self, belief: Sensitivity, rows: NDArray[np.int64], costs: Array) -> Array:
        """Return the expected new volume, or gain for the goal, of each candidate: [n]."""
        if self._goal is not None and len(self._told) % FRONT_EVERY:
            gains = self._goal_gains(self._goal, belief, rows, costs)
            if gains.any():
                return gains
        gains = self._gains_from(self._measures, belief, rows, costs)
        if self._outer and self._looks_beyond(gains):
            beyond = self._gains_from((self._outer,), belief, rows, costs)
            return beyond if beyond.any() else gains
        return gains

    def _looks_beyond(self, gains: Array) -> bool:
        """Whether an ask that promises these gains is for what the outer corner counts."""
        if self._goal is not None or len(self._measures) > 1 or len(self._told) % BEYOND_EVERY:
            return False
        known = np.array(self._known(self._expected)).reshape(-1, 3)
        volume = self._measure.volume(known[:, 2], known[:, :2])
        return bool(gains.max() <= LITTLE * volume)

    def _gains_from(
        self,
        measures: Sequence[Yardstick],
        belief: Sensitivity,
        rows: NDArray[np.int64],
        costs: Array,
    ) -> Array:
        """Return the expected new volume of each candidate, from the corners of all: [n]."""
        gains, unit = np.zeros(len(rows)), 0.0
        for measure in measures:
            corner = measure.corner * (1.0, OUTER, OUTER)
            hopeful = np.flatnonzero((costs < corner[1:]).all(axis=1))
            if not len(hopeful):
                continue
            # Of each corner what is gained counts as a share of all that prices would allow.
            allowed = float(np.prod(corner[1:] - costs.min(axis=0)))
            unit = unit or allowed
            for archive, beliefs in self._ways(belief, rows[hopeful]):
                cuts, free = free_areas(archive, costs[hopeful], corner)
                found = expected_improvements(beliefs, cuts, free, measure)
                gains[hopeful] += unit / allowed * found
        return gains

    def _goal_gains(
        self, goal: Goal, belief: Sensitivity, rows: NDArray[np.int64], costs: Array
    ) -> Array:
        """Return by how much each candidate is expected to be better for the goal: [n]."""
        small = self._measure.smallest_gap
        known = np.array(self._known(self._expected)).reshape(-1, 3)
        found = goal.values(known[:, 2], known[:, :2], small)
        best = min(goal.worst(costs, self._measure), float(found.min(initial=np.inf)))
        return goal.expected_improvements(belief.predict(rows), costs, best, small)

    def _ways(
        self, belief: Sensitivity, rows: NDArray[np.int64]
    ) -> Iterator[tuple[Array, list[Belief]]]:
        """Yield what may have been found once all is told, and what is believed of `rows` then."""
        outstanding = self._outstanding_rows()
        if len(outstanding) <= self._few:
            yield front_of(self._archive(self._expected)), belief.predict(rows)
            return
        draws = min(DRAWS, max(LEAST_DRAWS, MOST_DRAWN // len(outstanding)))
        rng = np.random.default_rng(len(self._told))
        front = front_of(self._archive({row: self._expected[row] for row in self._gaps}))
        costs = np.array([self._told[row] for row in outstanding])
        for fantasy in fantasies(belief, self._array(outstanding), rows, draws, rng):
            gaps = nats(fantasy.gaps, self._measure.smallest_gap)
            drawn = self._measure.points(gaps, costs)
            yield front_of(np.concatenate([front, drawn])), [fantasy.belief]

    def _archive(self, gaps: Mapping[Row, float]) -> Array:
        """Return the points of policies with these gaps, and of those that are none of the pool."""
        points = np.array(self._known(gaps)).reshape(-1, 3)
        return self._measure.points(points[:, 2], points[:, :2])

    def _known(self, gaps: Mapping[Row, float]) -> list[tuple[float, float, float]]:
        """Return (time, memory, gap) of policies with these gaps, and of those outside the pool."""
        return [(*self._told[row], gap) for row, gap in gaps.items()] + self._outside


def _means(beliefs: Sequence[Belief], smallest_gap: float) -> Array:
    """Return the expected gaps in nats, at the mean of their scale: [n]."""
    mean = sum(belief.weight * belief.mean for belief in beliefs)
    total = sum(belief.weight for belief in beliefs)
    return nats(np.asarray(mean / total), smallest_gap)
