"""What the sections of a page look at: the results, read once, and which policies come first."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from policysearch.policy.presets import TF32
from policysearch.report.against import against, picked, unproven
from policysearch.report.page.words import formats_said, gap, power, spans, typeset
from policysearch.report.runs_in import Runs, runs_of, tracing_of
from policysearch.search.hypervolume import Point, covers
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.study.results.rows import Row
from policysearch.train.step import Tracing

MOST_DETAILED = 24
"""So many policies are shown up close, and as columns of formats."""


@dataclass(frozen=True)
class Sight:
    """The results of a study as its page shows them.

    `study`: the study file as commands are given it. `watched`: after so many seconds the page is
    read again, 0 for never.
    """

    results: Results
    study: str
    watched: int = 0

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row per trained policy, the front first."""
        return self.results.rows()

    @cached_property
    def row(self) -> dict[int, Row]:
        """The rows by the number of their trial."""
        return {row.trial: row for row in self.rows}

    @cached_property
    def trial(self) -> dict[int, Trial]:
        """The trained policies by number."""
        return {trial.number: trial for trial in self.results.trials}

    @cached_property
    def pick(self) -> Trial | None:
        """The policy that is put first; None without a front."""
        return picked(self.results)

    @cached_property
    def float32(self) -> Trial | None:
        """float32 as a trial of the study, where it is one."""
        return next((t for t in self.results.trials if "float32" in t.presets), None)

    @cached_property
    def warnings(self) -> list[str]:
        """What speaks against the pick, one sentence each."""
        changes = [f"results of both sides of a change: {c}" for c in self.results.mixed]
        return [*against(self.results), *unproven(self.results), *changes]

    @cached_property
    def detailed(self) -> tuple[Trial, ...]:
        """The policies shown up close: the pick, the front, what else may be picked, presets.

        Then what fails later or was tried by hand, and the rest by speed; MOST_DETAILED at most.
        """
        results = self.results
        sound = results.sound_front() if results.front else []
        named = [t for t in results.trials if t.presets]
        failing = [t for t in results.trials if results.doubt(t) or t.by_hand]
        rest = [self.trial[row.trial] for row in self.rows]
        first = [self.pick] if self.pick else []
        ordered = [*first, *results.front, *sound, *named, *failing, *rest]
        once = {trial.number: trial for trial in ordered}
        return tuple(once.values())[:MOST_DETAILED]

    @cached_property
    def sound(self) -> frozenset[int]:
        """The numbers of what may be picked."""
        found = self.results.sound_front() if self.results.front else []
        return frozenset(trial.number for trial in found)

    @cached_property
    def linked(self) -> frozenset[int]:
        """The numbers of the policies that are shown up close."""
        return frozenset(trial.number for trial in self.detailed)

    @cached_property
    def _tracing(self) -> Tracing | None:
        return tracing_of(self.results.spec)

    @cached_property
    def runs(self) -> dict[int, Runs | None]:
        """By number what every layer runs in, of the policies up close; None without the net."""
        return {trial.number: runs_of(self._tracing, trial.policy) for trial in self.detailed}

    def formats_said(self, trial: Trial) -> str:
        """Return in words what the layers that multiply run in, by the graph where there is one."""
        runs = self.runs.get(trial.number)
        if not runs:
            return formats_said(trial.policy)
        ran = [(name, "+".join(row.forward)) for name, row in runs.items() if row.product]
        if not ran:
            return formats_said(trial.policy)
        every = {name for row in runs.values() for name in (*row.forward, *row.backward)}
        if len({form for _, form in ran}) == 1 and len(every) > 1:
            return f"{ran[0][1]} in all products"
        return spans(ran, "layers with products")

    def gap_said(self, row: Row) -> str:
        """Return the loss gap in nats; where it cannot be told, at most what it may be."""
        if row.diverged:
            return "–"
        return (
            gap(row.loss_gap) if row.told or not row.loss_gap else f"≤\xa0{power(row.counted_gap)}"
        )

    def command(self, said: str) -> str:
        """Return a command on this study, as a shell takes it."""
        study = self.study
        if not re.fullmatch(r"[\w./:@+-]+", study):
            study = "'" + study.replace("'", "'\\''") + "'"
        return f"policysearch {said.format(study)}"

    def href(self, number: int) -> str | None:
        """Return the link to a policy up close; None where it is not shown so."""
        return f"#t{number}" if number in self.linked else None

    def mark(self, number: int) -> str:
        """Return the sign beside a number: ★ picked, ✕ fails later, ! an early sign, ⚠ diverged."""
        if self.pick is not None and number == self.pick.number:
            return "★"
        trial = self.trial[number]
        if trial.diverged:
            return "∞"
        if self.results.fault(trial):
            return "✕"
        return "!" if self.results.doubt(trial) else ""

    def state(self, row: Row) -> str:
        """Return in words where a policy stands."""
        return typeset(self._state(row))

    def _state(self, row: Row) -> str:
        trial = self.trial[row.trial]
        if trial.diverged:
            return trial.divergence
        if row.fault:
            return f"fails later: {row.fault}"
        if doubt := self.results.doubt(trial):
            return doubt
        held = f", holds at {row.confirmed_steps} steps" if row.confirmed_steps else ""
        pick = "the pick, " if self.mark(row.trial) == "★" else ""
        if row.on_front:
            return f"{pick}on the front{held}"
        if row.trial in self.sound:
            return f"{pick}sound where members of the front fail{held}"
        return f"{self.beaten(trial)}{held}" if self.results.front else "not ranked"

    def beaten(self, trial: Trial) -> str:
        """Return by whom a policy is beaten: by the pick where it does that, else by what holds."""
        here, resolutions = self.results.point(trial), self.results.spec.objectives.resolutions
        for number, there in self._holding_points:
            if number != trial.number and covers(there, here, resolutions):
                alike = covers(here, there, resolutions)
                return f"{'as good as' if alike else 'beaten by'} trial {number}"
        by = next(iter(self.results.beaten_by(trial)), None)
        if by is None:
            return "beaten"
        early = ", which shows an early sign of failing" if self.results.doubt(by) else ""
        late = ", which fails later" if self.results.fault(by) else early
        return f"beaten by trial {by.number}{late}"

    @cached_property
    def _holding_points(self) -> list[tuple[int, Point]]:
        """Number and point of what may be picked, the pick first."""
        ordered = sorted(self.sound, key=lambda n: (self.mark(n) != "★", n))
        return [(number, self.results.point(self.trial[number])) for number in ordered]

    @cached_property
    def references(self) -> list[tuple[str, float]]:
        """What else than float32 speed is compared with: (name, modeled speedup over float32)."""
        pairs = list(self.results.reference_speedups.items())[1:]
        base = self.results.spec.study.baseline
        names = {TF32: "TF32, one switch"}
        return [
            (f"baseline: {name}" if name == base else names.get(name, name), speed)
            for name, speed in pairs
        ]
