"""A diagnosis: a policy is trained, its cause named, and changes tried until one repairs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from policysearch.diagnose.evidence import Cause, Evidence
from policysearch.diagnose.repairs import (
    LeftOut,
    Repair,
    followed,
    joined,
    kept_there,
    low_work,
    repairs_of,
)
from policysearch.diagnose.shadow import Shadows
from policysearch.graph import Graph
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy

Verdict = Literal["none", "repaired", "not repaired", "undecided"]

BUDGET = 6
"""Trainings of changes, at most, unless told otherwise."""

MATTERS = 0.05
"""A gap below this share of what float32 has learned, or of its loss, is no failure."""

TIMES_NOISE = 5.0
"""A gap below so many times what a jitter of float32 makes is none that can be told."""

CHAOTIC = 0.5
"""Where jitter moves float32 by this share of a gap that fails, chance decides it."""

CHAOS = "the recipe is chaotic"

JITTERS = (2.0**-11, -(2.0**-11), 2.0**-9)
"""Relative changes of initial values as large as a rounding to 16 bits: the control of repairs."""

SMALL_JITTERS = (2.0**-19, -(2.0**-19))
"""Where chance decides, they move float32 as far as large ones: two more looks at whether it does.

Three alone once ended close together by chance, in a recipe whose ends lie far apart.
"""

CLEAN = 0.1
"""Relative error of a change's shadow up to which it is worth a training."""

HELPS = 0.5
"""A change that the cause does not call for leaves at most this share of the policy's error."""

TIMES_BEST = 2.0
"""So is an error of so many times the smallest that any change leaves."""

SPARES = 0.1
"""A change that leaves so much more of the low-precision work is trained though one repairs."""

HOPELESS = 0.5
"""Where every single change leaves an error above this, two are tried together."""


def runs(seeds: int, budget: int) -> tuple[int, int]:
    """Return how many runs a diagnosis takes where nothing fails, and how many at most as a rule.

    One of them weighs the changes; only a repair that holds with one seed alone costs more.
    """
    sound = 2 + len(JITTERS) + len(SMALL_JITTERS)
    return sound, sound + 2 + 2 * len(JITTERS) + budget + 2 * (seeds - 1)


@dataclass(frozen=True)
class Tried:
    """A change: `left` of the low-precision work after it, its modeled prices, what it gave.

    `error` is that of its shadow, `gaps` those trained in nats, by seed; () where it was not.
    """

    repair: Repair
    error: float
    left: float
    speedup: float
    memory_ratio: float
    gaps: tuple[float, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on a policy, why, and what was tried, the most low-precision work left first.

    `gap` of the policy (infinite where it diverged) and `matters`, above which a gap is a failure,
    are in nats; `noise` is the
    largest by which jitter moved float32. `trained` counts the trainings of changes up to that of
    the repair, those on further seeds apart. `left_out` are changes that the target undoes.
    """

    verdict: Verdict
    cause: Cause
    gap: float
    matters: float
    noise: float
    tried: tuple[Tried, ...] = ()
    repair: Repair | None = None
    trained: int = 0
    held: tuple[float, ...] = ()
    why: str = ""
    left_out: tuple[LeftOut, ...] = ()


class Diagnoser:
    """Diagnoses policies of one objective with the first of `seeds`; the others confirm.

    Changes are tried as `target` runs them, torch where none is given, unless it runs the policy
    itself otherwise than it says.
    """

    def __init__(
        self,
        objective: Objective,
        seeds: Sequence[int],
        budget: int = BUDGET,
        progress: Callable[[str], None] = lambda line: None,
        target: str | None = None,
    ) -> None:
        self.objective, self.seeds, self.budget = objective, tuple(seeds), budget
        self.target = target or "torch"
        self._progress = progress
        self._shadows: Shadows | None = None
        self._near: Shadows
        self._levels: tuple[float, float] | None = None

    def diagnose(self, policy: Policy) -> Diagnosis:
        """Return why `policy` fails and the smallest change that was found to repair it."""
        self._progress("float32")
        base = self.objective.baseline(self.seeds[0])
        if base.tail_loss is None:
            cause = Cause("none", words=f"float32 itself {base.divergence}")
            return Diagnosis("undecided", cause, math.inf, 0.0, math.inf, why=cause.words)
        least, noise = self.levels(base)
        matters = max(least, TIMES_NOISE * noise)
        run = self._measurement(policy, self.seeds[0], "the policy")
        off = gap(run, base)
        if off <= matters:
            if noise > least:
                why = f"{CHAOS}: jitter alone moves float32's loss by {noise:.2g}"
                return Diagnosis("undecided", Cause("none"), off, matters, noise, why=why)
            return Diagnosis("none", Cause("none"), off, matters, noise)
        evidence = self._evidence(policy, run)
        # Beyond all that float32 has learned a net that learned nothing would pass for repaired.
        if noise > CHAOTIC * off or matters * MATTERS > least:
            why = f"{CHAOS}: jitter alone moves float32's loss by {noise:.2g}"
            return Diagnosis("undecided", evidence.cause, off, matters, noise, why=why)
        if any(g <= matters for g in self._jittered_gaps(policy, "the policy jittered")):
            why = f"{CHAOS}: the policy itself trains from initial values jittered a little"
            return Diagnosis("undecided", evidence.cause, off, matters, noise, why=why)
        return self._repair_verdict(evidence, off, matters, noise)

    def levels(self, base: Measurement) -> tuple[float, float]:
        """Return the gap that would matter, and by how much jitter moves float32, in nats."""
        if self._levels is None:
            jitters, float32 = (*JITTERS, *SMALL_JITTERS), self.objective.float32
            noise = max(map(abs, self._jittered_gaps(float32, "float32 jittered", jitters)))
            assert base.tail_loss is not None
            first = base.first_loss if base.first_loss is not None else base.tail_loss
            learned = max(abs(first - base.tail_loss), abs(base.tail_loss))
            self._levels = MATTERS * learned, noise
        return self._levels

    def _measurement(self, policy: Policy, seed: int, what: str) -> Measurement:
        self._progress(f"{what}, seed {seed}")
        return self.objective.measure(policy, seed)

    def _jittered_gaps(
        self, policy: Policy, what: str, jitters: Sequence[float] = JITTERS
    ) -> Iterator[float]:
        """Yield the gaps of a policy whose initial values are jittered: where chance takes it."""
        base = self.objective.baseline(self.seeds[0])
        for jitter in jitters:
            self._progress(what)
            yield gap(self.objective.measure(policy, self.seeds[0], jitter), base)

    def _evidence(self, policy: Policy, run: Measurement) -> Evidence:
        self._progress("shadow gradients")
        failed = min((row.step for row in run.origins if not row.skipped), default=0)
        if self._shadows is None:
            self._shadows = Shadows(self.objective, self.seeds[0], others=(failed,))
        self._near = shadows = self._shadows.beside(failed)
        steps = self.objective.task.steps
        error, grown = shadows.error(policy), shadows.grown(policy)
        return Evidence(policy, run, steps, error, grown, shadows.beyond(policy))

    def _repair_verdict(
        self, evidence: Evidence, off: float, matters: float, noise: float
    ) -> Diagnosis:
        graph = self.objective.step_graph(evidence.policy)
        table, undone = self._table(evidence, graph)
        worth, trained = self._worth(table, evidence)[: self.budget], 0
        repair, held = None, tuple[float, ...]()
        for place, row in worth:
            trained += 1
            if held := self._repair_gaps(table, place, matters):
                repair = row
                break
        for more, (place, row) in enumerate(worth[trained:] if repair else (), 1):
            # it was put off, for its values come near their limits: it may hold all the same
            larger = repair is not None and row.left > repair.left + SPARES
            if (
                larger
                and not row.repair.apart
                and (gaps := self._repair_gaps(table, place, matters))
            ):
                repair, held, trained = row, gaps, trained + more
                break
        verdict: Verdict = "not repaired" if repair is None else "repaired"
        why = f"no change of {trained} that were trained brings the gap below {matters:.2g}"
        why, rows = "" if repair else why, tuple(table)
        cause, left_out = evidence.cause.located(graph), tuple(undone)
        change = None if repair is None else repair.repair
        told = (off, matters, noise, rows, change, trained, held, why, left_out)
        return Diagnosis(verdict, cause, *told)

    def _repair_gaps(self, table: list[Tried], place: int, matters: float) -> tuple[float, ...]:
        """Return the gaps of a change with every seed where it repairs, () where it does not."""
        repair = table[place].repair
        run = self._measurement(repair.policy, self.seeds[0], repair.what)
        gaps: tuple[float, ...] = (gap(run, self.objective.baseline(self.seeds[0])),)
        if gaps[0] <= matters:
            gaps += self._held(repair.policy)
        table[place] = replace(table[place], gaps=gaps)
        whole = len(gaps) == len(self.seeds)
        return gaps if whole and self._is_no_chance(repair, gaps, matters) else ()

    def _table(self, evidence: Evidence, graph: Graph) -> tuple[list[Tried], list[LeftOut]]:
        """Return the changes in order, and those that the target undoes."""
        policy, near = evidence.policy, self._near
        there = self.objective.model, self.target
        found = [*followed(policy, near.lost, near.near), *repairs_of(evidence, graph)]
        changes, undone = kept_there(policy, found, *there)
        self._progress(f"{len(changes)} changes are weighed")
        rows = self._ordered_repairs(changes, low_work(graph))
        best = min((row for row in rows if not row.repair.apart), key=_error, default=None)
        if best is not None and HOPELESS < best.error < math.inf:
            after = self.objective.step_graph(best.repair.policy)
            both, _ = kept_there(policy, [*joined(best.repair, evidence, after)], *there)
            known = {row.repair.policy.digest for row in rows}
            both = [repair for repair in both if repair.policy.digest not in known]
            rows = sorted([*rows, *self._ordered_repairs(both, low_work(graph))], key=self._place)
        return rows, undone

    def _worth(self, table: Sequence[Tried], evidence: Evidence) -> list[tuple[int, Tried]]:
        """Return the changes to train, in order, each with its place in the table.

        Those that the cause or a shadow calls for, if no other leaves a much smaller error.
        """
        best = min((row.error for row in table if not row.repair.apart), default=math.inf)
        limit = max(CLEAN, TIMES_BEST * best)
        rows = [
            (place, row)
            for place, row in enumerate(table)
            if math.isfinite(row.error)
            and row.error <= limit
            and (not row.repair.rank or row.error <= HELPS * evidence.shadow.worst)
        ]
        return self._far_first(rows) if evidence.cause.kind in ("overflow", "born") else rows

    def _far_first(self, rows: Sequence[tuple[int, Tried]]) -> list[tuple[int, Tried]]:
        """Return rows with those first that keep values well below the limits of their formats.

        Of the first that the cause calls for: what is near them in a shadow is beyond them later.
        """
        called = [row for row in rows if not row[1].repair.rank][: self.budget]
        near = [row for row in called if self._near.near(row[1].repair.policy)]
        far = [row for row in called if row not in near]
        return [*far, *near, *(row for row in rows if row not in called)]

    def _held(self, policy: Policy) -> tuple[float, ...]:
        """Return the gaps of a repair with the other seeds."""
        runs = [(self._measurement(policy, s, "the repair"), s) for s in self.seeds[1:]]
        return tuple(gap(run, self.objective.baseline(seed)) for run, seed in runs)

    def _is_no_chance(self, repair: Repair, gaps: Sequence[float], matters: float) -> bool:
        """Return whether a repair holds with every seed, and for jittered initial values too."""
        if max(gaps) > matters:
            return False
        return all(
            g <= matters for g in self._jittered_gaps(repair.policy, f"{repair.what}, jittered")
        )

    def _ordered_repairs(self, changes: Sequence[Repair], work: float) -> list[Tried]:
        """Return the changes, most of the low-precision `work` left first, wide ones last."""
        whole = work or 1.0
        rows = []
        for repair in changes:
            cost = self.objective.price(repair.policy)
            left = min(1.0, low_work(self.objective.step_graph(repair.policy)) / whole)
            error = self._near.error(repair.policy).worst
            rows.append(Tried(repair, error, left, cost.speedup, cost.memory_ratio))
        return sorted(rows, key=self._place)

    @staticmethod
    def _place(row: Tried) -> tuple[bool, float, int, float, float]:
        left, rank = -round(row.left, 2), row.repair.rank
        return row.repair.apart, left, rank, -round(row.left, 4), row.error


def _error(row: Tried) -> float:
    return row.error


def gap(run: Measurement, base: Measurement) -> float:
    """Return the loss gap in nats, infinite where the run diverged: losses may be sums."""
    if run.tail_loss is None or base.tail_loss is None:
        return math.inf
    return run.tail_loss - base.tail_loss
